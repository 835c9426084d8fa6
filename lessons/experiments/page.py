"""The pages that show committed numbers: README.md beside this file, and one table of the front page. This command

    python lessons/experiments/page.py

writes the numbers into both again.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from lessons.experiments import compare_tables
from lessons.experiments.compare_answers import answer
from lessons.experiments.compare_runs import LADDER
from lessons.experiments.compare_tables import cell, markdown, rounded
from toy_env import UsageError

HERE = Path(__file__).parent
RESULTS, SPEED = HERE / "results.json", HERE / "bench_speed.json"  # of compare.py, by experiment, and of bench_speed.py


def publish(experiment: str, found: dict, figure: Path) -> None:
    """Put what an experiment of compare.py found, and its figure, among the committed results and onto the pages."""
    results = (json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}) | {experiment: rounded(found)}
    compare_tables.correct(results)
    results = rounded(results)
    made = pages(results)  # what could fail comes first
    shutil.copy(figure, HERE / "figures")
    for path, text in {RESULTS: compact(results, 3) + "\n", **made}.items():
        path.with_suffix(".tmp").write_text(text, "utf-8")
        path.with_suffix(".tmp").rename(path)


def compact(value, levels: int) -> str:
    """JSON in which each entry of the first levels has a line of its own, which holds all that is below it."""
    if not levels or not value or not isinstance(value, dict | list) or not isinstance([*value][0], str | dict):
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(compact(item, levels - 1) for item in value) + "\n]"
    entries = (f"{json.dumps(name)}: {compact(item, levels - 1)}" for name, item in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


def check_places(experiments: Iterable[str]) -> None:
    """Raises UsageError if README.md has no place for the table or the answer of an experiment."""
    places = [name + part for name in experiments for part in ("", "-answer")]
    into_page((HERE / "README.md").read_text("utf-8"), dict.fromkeys(places, ""))


def summary_table(found: dict) -> str:
    """What the front page shows of the experiment `shared`: the ladder."""
    rows = []
    for arm in LADDER:
        n, change = found["arms"][arm], ""
        if arm != "GRPO":
            change = compare_tables.change(compare_tables.find(found, arm, "GRPO"))
        goes_on = n["completions"]["mean"] > n["budget"]
        end = f"{cell(n['final'])} at {n['completions']['mean']:,.0f}" if goes_on else ""
        rows.append([arm, cell(n["at_budget"]), change, end])
    return markdown(["script", compare_tables.budget_of(found), "against GRPO, points", "goes on to"], rows)


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
    return compare_tables.filled(
        """From the start of the process to the first update it takes {ours:.1f} s, and TRL
    {trl:.1f} s; of both, {model:.1f} s go into importing torch and transformers and loading the
    model.""".format(**seconds)
    )


def parts_of(numbers: dict) -> list[float]:
    """Seconds of the six parts of a step."""
    parts = numbers["parts"]
    scored = parts.get("reference log-probs", 0.0) + parts.get("old and reference log-probs", 0.0)
    named = [parts["sampling"], scored, parts["forward"], parts["backward"], parts["optimizer"]]
    return [*named, numbers["seconds"] - sum(named)]


def into_page(page: str, made: dict[str, str]) -> str:
    """The page with each table put between its two comments, <!-- name --> and <!-- /name -->."""
    for name, table in made.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in page or end not in page:
            raise UsageError(f"the page has no place for the table {name!r}: it needs {start} and {end}")
        before, rest = page.split(start)
        page = f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"
    return page


def pages(results: dict | None = None) -> dict[Path, str]:
    """README.md here and the front page, as they should be after the results, by default those committed."""
    results, speed = results or json.loads(RESULTS.read_text("utf-8")), json.loads(SPEED.read_text("utf-8"))
    tables = {}
    for experiment, found in results.items():
        tables[experiment] = compare_tables.table(experiment, found)
        tables[f"{experiment}-answer"] = answer(experiment, found)
    made = {HERE / "README.md": tables | speed_tables(speed)}
    front = made[HERE.parents[1] / "README.md"] = {}
    if {"shared", "reinforce"} <= results.keys():
        front["summary"] = f"{summary_table(results['shared'])}\n\n{answer('front', results)}"
    return {path: into_page(path.read_text("utf-8"), of_page) for path, of_page in made.items()}


def write_pages() -> None:
    """Write the committed numbers into both pages."""
    for path, page in pages().items():
        path.write_text(page, "utf-8")


if __name__ == "__main__":
    write_pages()
