"""Finished runs as numbers with intervals, tables and figures: what compare.py and bench_speed.py show.

    python lessons/experiments/report.py

writes the tables of README.md beside this file, and that of the front page, from the committed numbers.
"""

import json
import math
import re
from pathlib import Path

import numpy as np

from toy_env import UsageError

HERE = Path(__file__).parent
RESULTS, SPEED = HERE / "results.json", HERE / "bench_speed.json"  # of compare.py and of bench_speed.py
BEFORE = HERE / "results_before.json"  # what an earlier time gave; "what" in it says which
KS = (1, 2, 4, 8, 16, 32, 64)
NUMBERS = (
    "final", "greedy", "at_budget", "mean_accuracy", "completions", "seconds", "update_norm", "clipped",
    "clipped_up_probability", "entropy", "length_right", "length_wrong", "truncated", "silent", "silent_trained_on",
)  # fmt: skip
AIME_2024 = (30, 36, 38, 41, 42, 50)  # of the rows of DAPO's Table 1

# ---------------------------------------------------------------------- numbers


def summary(folder: Path) -> dict:
    """What a finished run showed: single numbers, a curve over its evaluations, and means over windows of 5 steps.

    `mean_accuracy` is the held-out accuracy averaged from 0 to `budget` completions, those that a script without
    dynamic sampling draws; `at_budget` is the accuracy there, interpolated between two evaluations.
    """
    config, results = (json.loads((folder / name).read_text()) for name in ("config.json", "results.json"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "clipped_up" in row:
            row["clipped"] = row["clipped_up"] + row["clipped_down"]

    def mean(name: str, rows: list[dict]) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    evaluated = [row for row in rows if row["held_out"] is not None]
    seconds = np.cumsum([row["seconds"] for row in rows])
    updates = config.get("num_minibatches", 1) * config.get("epochs", 1)
    curve = {
        "updates": [0] + [row["step"] * updates for row in evaluated],
        "completions": [0] + [row["rollouts"] for row in evaluated],
        "seconds": [0.0] + [float(seconds[row["step"] - 1]) for row in evaluated],
        "held_out": [before["sampled"]] + [row["held_out"] for row in evaluated],
    }
    budget = config["steps"] * config["prompts_per_step"] * config["group_size"]
    grid = np.interp(np.linspace(0, budget, 201), curve["completions"], curve["held_out"])
    of_all_steps = ("update_norm", "clipped", "clipped_up_probability", "truncated", "silent")
    of_the_last_ten = ("entropy", "length_right", "length_wrong")
    of_windows = ("step", *of_all_steps, *of_the_last_ten)
    return {
        "learning_rate": config["learning_rate"],
        "budget": budget,
        "final": after["sampled"],
        "greedy": after["greedy"],
        "at_budget": float(grid[-1]),
        "mean_accuracy": float(grid.mean()),
        "completions": rows[-1]["rollouts"],
        "seconds": float(seconds[-1]),
        **{name: mean(name, rows) for name in of_all_steps},
        **{name: mean(name, rows[-10:]) for name in of_the_last_ten},
        # dynamic sampling draws silent groups and does not train on them
        "silent_trained_on": 0.0 if config.get("dynamic_sampling") else mean("silent", rows),
        "curve": curve,
        "windows": {name: [mean(name, rows[i : i + 5]) for i in range(0, len(rows), 5)] for name in of_windows},
    }


def bootstrap(values: np.ndarray, draws: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval of the mean over axis 0, the seeds: (n, ...) to two arrays (...)."""
    picks = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    low, high = np.percentile(np.asarray(values)[picks].mean(axis=1), [2.5, 97.5], axis=0)
    return low, high


def interval_over_both(rates: np.ndarray, draws: int = 2000) -> list[float]:
    """95 % percentile bootstrap interval of the mean of (seeds, problems), both drawn anew with replacement."""
    rng, (seeds, problems) = np.random.default_rng(0), rates.shape
    means = [
        rates[rng.integers(seeds, size=seeds)][:, rng.integers(problems, size=problems)].mean() for _ in range(draws)
    ]
    return np.percentile(means, [2.5, 97.5]).tolist()


def estimate(values: list[float | None]) -> dict:
    """Mean over seeds, its interval, and the values themselves; a seed without a value (None) counts in neither."""
    found = [value for value in values if value is not None]
    if not found:
        return {"mean": None, "interval": None, "seeds": []}
    low, high = bootstrap(np.array(found))
    return {"mean": float(np.mean(found)), "interval": [float(low), float(high)], "seeds": values}


def training_numbers(arms: dict[str, list[dict | None]]) -> dict:
    """Plain data of an experiment, from the summaries of each arm by seed; None for a run that diverged."""
    results = {}
    for arm, runs in arms.items():
        first = next(filter(None, runs))
        results[arm] = {name: first[name] for name in ("learning_rate", "budget")}
        results[arm] |= {name: estimate([run and run[name] for run in runs]) for name in NUMBERS}
    return results


def sampling_numbers(arms: dict[str, dict[str, np.ndarray]]) -> dict:
    """Plain data from each arm's rates of "pass" and "majority": arrays (seeds, KS, problems)."""

    def each_k(rates: np.ndarray) -> list[dict]:
        return [
            {"k": k, "mean": float(rates[:, i].mean()), "interval": interval_over_both(rates[:, i])}
            for i, k in enumerate(KS)
        ]

    return {arm: {kind: each_k(rates) for kind, rates in kinds.items()} for arm, kinds in arms.items()}


def rounded(data: dict) -> dict:
    """The same plain data with its floats to 4 significant digits."""
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.4g}"))


# ---------------------------------------------------------------------- tables


def cell(number: dict, digits: int = 3) -> str:
    """Mean and interval, ".926 [.919, .932]"."""
    if number["mean"] is None:
        return "none"
    mean, low, high = (
        re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}") for value in (number["mean"], *number["interval"])
    )
    return f"{mean} [{low}, {high}]"


def verdict(*comparisons: tuple[dict, dict]) -> str:
    """Whether an arm's number lies above another's, from the (arm, other) of each time the comparison was made.

    The intervals decide, the seeds in favour are counted. A difference seen at one time only is "not repeated".
    """
    higher, lower, directions = [], [], set()
    for arm, other in comparisons:
        pairs = [pair for pair in zip(arm["seeds"], other["seeds"]) if None not in pair]
        higher.append(f"{sum(a > b for a, b in pairs)} of {len(pairs)}")
        lower.append(f"{sum(a < b for a, b in pairs)} of {len(pairs)}")
        above = arm["interval"][0] > other["interval"][1]
        below = arm["interval"][1] < other["interval"][0]
        directions.add("higher" if above else "lower" if below else "")
    if directions == {"higher"}:
        return f"higher in {' and '.join(higher)}"
    if directions == {"lower"}:
        return f"lower in {' and '.join(lower)}"
    seen = "no difference seen" if directions == {""} else "not repeated"
    return f"{seen} ({' and '.join(higher)} higher)"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as GitHub reads it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(results: dict, before: dict | None = None) -> dict[str, str]:
    """The page's tables by name, from the numbers of compare.py; the verdicts also from `before`, an earlier time."""
    made, times = {}, [results] if before is None else [before, results]
    singly: list[list[str]] = []  # the verdicts of each time

    def judged(name: str, experiment: str, arm: str, other: str, other_experiment: str = "") -> str:
        pairs = [(time[experiment][arm][name], time[other_experiment or experiment][other][name]) for time in times]
        singly.append([verdict(pair) for pair in pairs])
        return verdict(*pairs)

    compared = [experiment for experiment in ("shared", "matched") if experiment in results]
    for experiment in compared:
        arms = results[experiment]
        made[experiment] = markdown(
            ["script", "learning rate", "mean update length", "accuracy, mean over training",
             f"at {next(iter(arms.values()))['budget']:,} completions", "at the end", "completions", "seconds"],
            [[arm, f"{n['learning_rate']:.3g}", cell(n["update_norm"], 4), cell(n["mean_accuracy"]),
              cell(n["at_budget"]), cell(n["final"]), f"{n['completions']['mean']:,.0f}",
              f"{n['seconds']['mean']:.0f}"] for arm, n in arms.items()],
        )  # fmt: skip
    if "shared" in results:
        made["behaviour"] = markdown(
            ["script", "length of right completions", "of wrong completions", "entropy", "silent share, all steps",
             "tokens clipped, all steps", "greedy accuracy"],
            [[arm, cell(n["length_right"], 1), cell(n["length_wrong"], 1), cell(n["entropy"]), cell(n["silent"], 2),
              "no clip" if n["clipped"]["mean"] is None else f"{n['clipped']['mean']:.2%}", cell(n["greedy"])]
             for arm, n in results["shared"].items()],
        )  # fmt: skip
    if "pieces" in results:
        rows = [("shared", "GRPO"), *(("pieces", arm) for arm in results["pieces"]), ("shared", "Dr. GRPO")]
        shown = {
            "accuracy, mean over training": ("mean_accuracy", 3),
            "length of wrong completions": ("length_wrong", 1),
            "entropy at the end": ("entropy", 3),
        }
        made["pieces"] = markdown(
            ["", *(text for title in shown for text in (title, "against GRPO"))],
            [[arm, *(text for name, digits in shown.values()
                     for text in (cell(results[experiment][arm][name], digits),
                                  "" if arm == "GRPO" else judged(name, experiment, arm, "GRPO", "shared")))]
             for experiment, arm in rows],
        )  # fmt: skip
    if compared:
        columns = {f"{title} {experiment}": (name, experiment) for experiment in compared for name, title in
                   (("mean_accuracy", "mean over training,"), ("at_budget", "at equal completions,"))}  # fmt: skip
        made["verdicts"] = markdown(
            ["against GRPO", *columns],
            [[arm, *(judged(name, experiment, arm, "GRPO") for name, experiment in columns.values())]
             for arm in results[compared[0]] if arm != "GRPO"],
        )  # fmt: skip
    if "ablation" in results:
        arms = results["ablation"]
        above = dict(zip([*arms][1:], arms))
        shown = {f"at {next(iter(arms.values()))['budget']:,} completions": "at_budget",
                 "mean over training": "mean_accuracy"}  # fmt: skip
        made["ablation"] = markdown(
            ["change, on top of the row above", "AIME 2024, published", "accuracy at the end", "completions",
             *(text for title in shown for text in (title, "against the row above"))],
            [[arm, str(published), cell(n["final"]), f"{n['completions']['mean']:,.0f}",
              *(text for name in shown.values()
                for text in (cell(n[name]), judged(name, "ablation", arm, above[arm]) if arm in above else ""))]
             for (arm, n), published in zip(arms.items(), AIME_2024)],
        )  # fmt: skip
        made["mechanisms"] = markdown(
            ["change", "entropy at the end", "tokens clipped", "probability of up-clipped tokens",
             "silent share trained on", "cut at the limit", "length of wrong completions"],
            [[arm, cell(n["entropy"]), f"{n['clipped']['mean']:.2%}", cell(n["clipped_up_probability"], 2),
              cell(n["silent_trained_on"], 2) if any(n["silent_trained_on"]["seeds"]) else "0, by construction",
              f"{n['truncated']['mean']:.1%}", cell(n["length_wrong"], 1)] for arm, n in arms.items()],
        )  # fmt: skip
    if "sampling" in results:
        shown = [(f"{title}@{k}", kind, KS.index(k)) for title, kind in (("Maj", "majority"), ("Pass", "pass"))
                 for k in (4, 16, 64)]  # fmt: skip
        made["sampling"] = markdown(
            ["policy", "Pass@1 = Maj@1", *(title for title, _, _ in shown)],
            [[arm, cell(kinds["pass"][0]), *(cell(kinds[kind][i]) for _, kind, i in shown)]
             for arm, kinds in results["sampling"].items() if arm != "samples"],
        )  # fmt: skip
    if before:
        seen = [[text.startswith(("higher", "lower")) for text in texts] for texts in singly]
        first, second = (sum(column) for column in zip(*seen))
        once = [texts[shown.index(True)] for texts, shown in zip(singly, seen) if sum(shown) == 1]
        whole = sum(text.endswith(f"{results['seeds']} of {results['seeds']}") for text in once)
        made["repeated"] = (
            f"Of the {len(singly)} comparisons in the three tables with verdicts, the first time showed a difference "
            f"in {first}, the second in\n{second}, both in {sum(map(all, seen))}. Of the {len(once)} differences seen "
            f"once only, {whole} had all seeds on their side."
        )
    return made


def summary_table(results: dict) -> str:
    """What the front page shows of the experiment `shared`."""
    arms = results["shared"]
    return markdown(
        ["script", "accuracy at the end", f"at {next(iter(arms.values()))['budget']:,} completions", "completions"],
        [[arm, cell(n["final"]), cell(n["at_budget"]), f"{n['completions']['mean']:,.0f}"] for arm, n in arms.items()],
    )


def speed_tables(results: dict) -> dict[str, str]:
    """The tables by name, from the numbers of bench_speed.py."""
    speed = markdown(
        ["policy, parameters", "ours, a step", "TRL, a step", "TRL / ours", "floor / ours", "ours, tokens a second",
         "peak memory, ours and TRL"],
        [[f"{name}, {row['parameters']:,}", f"{1e3 * row['ours']['seconds']:.0f} ms",
          f"{1e3 * row['trl']['seconds']:.0f} ms", f"{row['speed_against_trl']:.2f}", f"{row['share_of_floor']:.0%}",
          f"{row['ours']['tokens_per_second']:,.0f}", f"{row['ours']['memory']:.0f} and {row['trl']['memory']:.0f} MiB"]
         for name, row in results["models"].items()],
    )  # fmt: skip
    parts = markdown(
        ["milliseconds of a step", "sampling", "log-probs of old and reference policy", "forward", "backward",
         "optimizer", "rest"],
        [[f"{name}, {side}", *(f"{1e3 * part:.0f}" for part in parts_of(row[side]))]
         for name, row in results["models"].items() for side in ("ours", "trl")],
    )  # fmt: skip
    growth = markdown(
        ["completions in a step", *results["growth"]],
        [["milliseconds", *(f"{1e3 * row['seconds']:.0f}" for row in results["growth"].values())],
         ["times the column before", *("" if row["times"] is None else f"{row['times']:.2f}"
                                       for row in results["growth"].values())]],
    )  # fmt: skip
    made = {"speed": speed, "speed-parts": parts, "growth": growth, "start-up": start_up(results["start_up"])}
    if "memory" in results:  # older results measured another flag
        made["memory"] = markdown(
            ["`--max_tokens_per_pass`, in an update of 4,096 completions", *results["memory"]],
            [["peak memory, MiB", *(f"{row['memory']:.0f}" for row in results["memory"].values())],
             ["milliseconds", *(f"{1e3 * row['seconds']:.0f}" for row in results["memory"].values())]],
        )  # fmt: skip
    return made


def start_up(seconds: dict) -> str:
    """What the page says of the start."""
    return """\
From the start of the process to the first update it takes {ours:.1f} s, an evaluation on 256 held-out problems
included, and TRL {trl:.1f} s ({trl / ours:.1f} times as long). Importing torch and transformers and loading the model
takes {model:.1f} s of both, which leaves {own:.1f} s for our own part.
""".rstrip().format(**seconds, own=seconds["ours"] - seconds["model"])


def parts_of(numbers: dict) -> list[float]:
    """Seconds of the six parts of a step."""
    parts = numbers["parts"]
    scored = parts.get("reference log-probs", 0.0) + parts.get("old and reference log-probs", 0.0)
    named = [parts["sampling"], scored, parts["forward"], parts["backward"], parts["optimizer"]]
    return [*named, numbers["seconds"] - sum(named)]


# ---------------------------------------------------------------------- pages


def into_page(page: str, made: dict[str, str]) -> str:
    """The page with each table put between its two comments, <!-- name --> and <!-- /name -->."""
    for name, table in made.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in page or end not in page:
            raise UsageError(f"the page has no place for the table {name!r}: it needs {start} and {end}")
        before, rest = page.split(start)
        page = f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"
    return page


def pages() -> dict[Path, str]:
    """README.md here and the front page, as they should be after the committed numbers."""
    results, before, speed = (json.loads(path.read_text()) for path in (RESULTS, BEFORE, SPEED))
    made = {HERE / "README.md": tables(results, before) | speed_tables(speed)}
    made[HERE.parents[1] / "README.md"] = {"summary": summary_table(results)}
    return {path: into_page(path.read_text(), of_page) for path, of_page in made.items()}


def write_pages() -> None:
    for path, page in pages().items():
        path.write_text(page)


# ---------------------------------------------------------------------- figures

COLORS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#D55E00", "#777777")  # Okabe and Ito, colour-blind safe
MARKS = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (6, 1, 1, 1, 1, 1)), "v"), ((0, (2, 1)), "X"))

ACCURACY = "Held-out accuracy"
OVER_COST = [
    (ACCURACY, "completions sampled (DAPO goes on)", "curve", "completions", "held_out"),
    (ACCURACY, "optimizer steps", "curve", "updates", "held_out"),
    (ACCURACY, "seconds of training, one thread", "curve", "seconds", "held_out"),
]
PANELS = {  # heading, label of the x-axis, where the two lists are in a summary, and their names there
    "shared": [
        *OVER_COST,
        ("Length of right completions, tokens", "rollout batch", "windows", "step", "length_right"),
        ("Length of wrong completions, tokens", "rollout batch", "windows", "step", "length_wrong"),
        ("Entropy, nats per token", "rollout batch", "windows", "step", "entropy"),
        ("Silent groups, share of those drawn", "rollout batch", "windows", "step", "silent"),
        ("Share of tokens stopped by the clip", "rollout batch", "windows", "step", "clipped"),
    ],
    "matched": [*OVER_COST, ("Length of an update", "rollout batch", "windows", "step", "update_norm")],
    "ablation": [
        (ACCURACY, "completions (+ dynamic sampling goes on)", "curve", "completions", "held_out"),
        ("Entropy, nats per token", "rollout batch", "windows", "step", "entropy"),
        ("Share of tokens stopped by the clip", "rollout batch", "windows", "step", "clipped"),
        ("Share of completions cut at the limit", "rollout batch", "windows", "step", "truncated"),
        ("Length of wrong completions, tokens", "rollout batch", "windows", "step", "length_wrong"),
        ("Silent groups, share of those drawn", "rollout batch", "windows", "step", "silent"),
    ],
}
TITLES = {
    "shared": "One learning rate for all",
    "matched": "Updates of one mean length",
    "ablation": "From GRPO to DAPO, one change at a time",
}


def draw_experiment(experiment: str, arms: dict[str, list[dict | None]], path: Path) -> None:
    """Small multiples; in each a line an arm, the mean over its seeds, with its bootstrap band."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    panels = PANELS[experiment]
    runs = {arm: [run for run in of_arm if run] for arm, of_arm in arms.items()}
    is_sequence = experiment == "ablation"
    colors = colormaps["viridis_r"](np.linspace(0.2, 1, len(runs))) if is_sequence else COLORS
    looks = {arm: look(color, *marks) for arm, color, marks in zip(runs, colors, MARKS)}
    figure = Figure(figsize=(1.75 * len(panels), 6.4), layout="constrained")
    axes = list(figure.subplots(2, len(panels) // 2).flat)
    for axis, (heading, label, where, x, y) in zip(axes, panels):
        means = {}
        for arm, of_arm in runs.items():
            xs, ys = (np.array([run[where][name] for run in of_arm], dtype=float) for name in (x, y))  # None: NaN
            if np.isfinite(ys).any():
                means[arm] = xs.mean(axis=0), ys.mean(axis=0)
                axis.fill_between(means[arm][0], *bootstrap(ys), color=looks[arm]["color"], alpha=0.12, linewidth=0)
                axis.plot(*means[arm], **looks[arm], label=arm)
        axis.set_ylim((0.3, 1) if y == "held_out" else (0, None))
        if x == "completions":
            low, high = 0, 1.3 * next(iter(runs.values()))[0]["budget"]
            if is_sequence:  # its arms differ by little and climb alike at first: the panel shows what comes after
                low = high / 8
                late = np.concatenate([ys[(low <= xs) & (xs <= high)] for xs, ys in means.values()])
                if late.size:
                    axis.set_ylim(late.min() - 0.02, late.max() + 0.02)
            axis.set_xlim(low, high)
        tidy(axis, heading, label)
    seeds = max(map(len, arms.values()))
    finish(figure, f"{TITLES[experiment]} · {seeds} seeds: mean and 95 % bootstrap band", path)


def draw_sampling(arms: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """Maj@K and Pass@K of the base model and of each script, with intervals over seeds and problems."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    looks = {arm: look(color, *marks) for arm, color, marks in zip(arms, COLORS[-1:] + COLORS, MARKS[-1:] + MARKS)}
    for axis, kind, title in zip(figure.subplots(1, 2, sharey=True), ("majority", "pass"), ("Maj@K", "Pass@K")):
        for arm, kinds in arms.items():
            rates = kinds[kind]  # (seeds, KS, problems)
            bands = np.array([interval_over_both(rates[:, i]) for i in range(len(KS))])
            axis.fill_between(KS, *bands.T, color=looks[arm]["color"], alpha=0.12, linewidth=0)
            axis.plot(KS, rates.mean(axis=(0, 2)), **looks[arm], label=arm)
        axis.set_xscale("log", base=2)
        axis.set_xticks(KS, [str(k) for k in KS])
        tidy(axis, f"{title} on held-out problems", "K, completions of each problem")
    finish(figure, "", path)


def look(color, dashes, marker: str) -> dict:
    """How an arm's line is drawn: told from the others by its dashes and its markers, not by its colour alone."""
    return {"color": color, "linestyle": dashes, "marker": marker, "markersize": 4, "markerfacecolor": "white",
            "linewidth": 1.5}  # fmt: skip


def tidy(axis, heading: str, label: str) -> None:
    """Headings, grid and a few numbers below the axis."""
    from matplotlib.ticker import MaxNLocator

    axis.set_title(heading, fontsize=10, loc="left")
    axis.set_xlabel(label, fontsize=9)
    if axis.get_xscale() == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def finish(figure, title: str, path: Path) -> None:
    """The legend below all panels, in rows of equal length; then write the file."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    fitting = int(figure.get_figwidth() / (0.65 + 0.075 * max(map(len, labels))))  # inches, at this font size
    columns = math.ceil(len(labels) / math.ceil(len(labels) / fitting))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.5)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    write_pages()
