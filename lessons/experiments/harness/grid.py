"""One harness for experiments: runs made in parallel, their results, tables and pages.

An experiment declares what a run is (a frozen dataclass of its settings), which runs there are, and
a function that makes one run and returns plain data:

    results = results_of(config, train, runs, RESULTS)  # one dictionary for each run

A result holds the settings of its run, the data that `train` returned, and the machine. OUTPUT/runs
has a file for every finished run, and the file at RESULTS, which is committed, a line for every
published one: the same command goes on from both. To make a run again, delete its line and its
file. With --publish RESULTS grows with every run, so that it can be committed in pieces.
"""

import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

import torch

from lessons.experiments.harness import paired
from lessons.experiments.harness.paired import LEVEL
from lessons.experiments.harness.pool import in_parallel


@dataclass
class GridConfig:
    """The settings of every experiment."""

    seeds: int = 10  # seeds 0, 1, ... of every arm
    output: str = ""  # folder for the runs; by default runs/SCRIPT
    publish: bool = False  # update the committed results


class Grid:
    """The folder of an experiment, with a file for the result of every run."""

    def __init__(self, config: GridConfig, script: str) -> None:
        self.path = Path(config.output or f"runs/{script}")
        self.command = f"python lessons/experiments/{script}.py --publish"
        self.publishing = config.publish

    def run(
        self, function: Callable, runs: Sequence, name: str = "runs", committed: Path | None = None
    ) -> list[dict]:
        """Make the runs that are neither among the `committed` results nor in the folder NAME yet.
        Returns for each of `runs` its settings, what function(run) returned, and the machine. With
        --publish new rows are added to `committed` as soon as they are made."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        rows = load_runs(committed) if committed and committed.is_file() else []
        made, missing = {}, []

        def add(key: str, text: str) -> None:
            made[key] = json.loads(text)
            rows.append(made[key])
            if committed and self.publishing:
                self.publish(committed, rows)

        def keep(i: int, result: dict) -> None:
            run, path = missing[i]
            row = settings_of(run) | result | {"machine": machine()}
            text = json.dumps(row, default=lambda array: array.tolist())
            write(path, text)
            add(path.stem, text)

        for run in runs:
            path, published = folder / f"{digest(run)}.json", select(rows, settings_of(run))
            if published:
                made[path.stem] = published[0]
            elif path.is_file():
                add(path.stem, path.read_text("utf-8"))
            else:
                missing.append((run, path))
        at_once = 1 if any("device" in settings_of(run) for run in runs) else 0
        in_parallel(function, [(run,) for run, _ in missing], name, keep, at_once)
        return [made[digest(run)] for run in runs]

    def publish(self, path: Path, results: list[dict]) -> None:
        """Write results into a committed file, a line for each run."""
        lines = ",\n".join(map(json.dumps, results))
        write(path, f'{{"command": "{self.command}", "runs": [\n{lines}\n]}}\n')


def write(path: Path, text: str) -> None:
    """Write a file that is whole at any time."""
    part = path.with_suffix(".tmp")
    part.write_text(text, "utf-8")
    part.replace(path)


def machine() -> str:
    """This machine, as results name it."""
    capability = torch.backends.cpu.get_cpu_capability()  # decides how sums are rounded
    return f"{os.cpu_count()} {platform.machine()} cores, {capability}, torch {torch.__version__}"


def settings_of(run) -> dict:
    """The settings of a run, its device only if it is not the CPU."""
    return {
        name: value for name, value in asdict(run).items() if (name, value) != ("device", "cpu")
    }


def digest(run) -> str:
    """A name for the settings of a run."""
    return sha256(json.dumps(settings_of(run)).encode()).hexdigest()[:16]


def results_of(config: GridConfig, function: Callable, runs: Sequence, path: Path) -> list[dict]:
    """The results of an experiment that has one grid, and its committed results at `path`."""
    return Grid(config, path.stem).run(function, runs, committed=path)


def load_runs(path: Path) -> list[dict]:
    """The runs of a file of results: their settings and what was measured."""
    return json.loads(path.read_text("utf-8"))["runs"]


def rounded(data: dict) -> dict:
    """The same plain data with its floats to 4 significant digits."""
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.4g}"))


def compact(value, levels: int) -> str:
    """JSON with a line for each entry of the first levels, which holds all that is below it, and
    for each dictionary in a list there."""
    if levels and isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    if not levels or not isinstance(value, dict):
        return json.dumps(value)
    entries = [f"{json.dumps(name)}: {compact(item, levels - 1)}" for name, item in value.items()]
    return "{\n" + ",\n".join(entries) + "\n}"


# ---------------------------------------------------------------------- runs


def defaults(run_class: type) -> dict:
    """The settings of a run that have a default."""
    return {
        field.name: field.default for field in fields(run_class) if field.default is not MISSING
    }


def select(runs: list[dict], settings: dict) -> list[dict]:
    """The runs with these settings, by seed."""
    chosen = [run for run in runs if settings.items() <= run.items()]
    return sorted(chosen, key=lambda run: run["seed"])


def against(table: dict[str, dict[str, list]], base: str, alone: str = "") -> dict[str, dict]:
    """The numbers of a table, from the values of each cell by seed: a mean, and its difference
    ("gap") from the base's row in the same column. The differences are one family, corrected by
    Holm if scipy is installed; those of a column that stands alone are not in it."""
    numbers, family = {row: {} for row in table}, []
    for row, columns in table.items():
        for column, values in columns.items():
            gap = paired.difference(values, table[base][column])
            numbers[row][column] = paired.estimate(values) | {"gap": gap}
            if row != base and column != alone:
                family.append(gap)
    if paired.stats:
        paired.holm(family)
    return numbers


# ---------------------------------------------------------------------- tables and pages


def short(value: float, digits: int = 3) -> str:
    """A number without the 0 in front: .926"""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}")


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign: +1.2 or −1.2"""
    return f"{value:+.{digits}f}".replace("-", "−")


def cell(number: dict, digits: int = 3) -> str:
    """A mean with its interval: ".926 [.919, .932]"."""
    mean = short(number["mean"], digits)
    if not number["interval"]:
        return mean
    low, high = (short(end, digits) for end in number["interval"])
    return f"{mean} [{low}, {high}]"


def change(comparison: dict, digits: int = 1, scale: float = 100) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", times the scale; bold if p < .05 after
    correction."""
    mean = round(scale * comparison["difference"], digits) + 0.0  # + 0.0 turns -0.0 into 0.0
    text = signed(mean, digits)
    if comparison["interval"]:
        text += f" [{', '.join(signed(scale * end, digits) for end in comparison['interval'])}]"
    return f"**{text}**" if comparison.get("p_holm", 1) < LEVEL else text


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as GitHub reads it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def note(seeds: list, comparisons: list[dict], more: str = "") -> str:
    """The sentence below a table: how many seeds it has, and how many comparisons are bold."""
    bold = sum(comparison["p_holm"] < LEVEL for comparison in comparisons)
    return f"{len(seeds)} seeds{more}; {bold} of {len(comparisons)} comparisons are bold."


def gaps_table(heading: str, numbers: dict[str, dict], base: str) -> str:
    """What `against` returns: the base's means, and the others' differences from them."""
    rows = []
    for row, columns in numbers.items():
        if row == base:
            rows.append([row, *map(cell, columns.values())])
        else:
            rows.append([row, *(change(number["gap"]) for number in columns.values())])
    return markdown([heading, *numbers[base]], rows)


def into_page(page: str, texts: dict[str, str]) -> str:
    """The page with each text put between its two comments, <!-- name --> and <!-- /name -->.
    Raises ValueError if the page lacks them."""
    for name, text in texts.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = page.split(start)
        _, after = rest.split(end)
        page = f"{before}{start}\n{text}\n{end}{after}"
    return page


def write_pages(texts: dict[Path, dict[str, str]]) -> None:
    """Put texts into pages: by the path of the page and the name of the place."""
    for path, places in texts.items():
        path.write_text(into_page(path.read_text("utf-8"), places), "utf-8")
