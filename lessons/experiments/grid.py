"""One harness for experiments: a grid of runs made in parallel, their results, tables and pages.

An experiment declares its settings, what a run is (a frozen dataclass), which runs there are, and a
function that makes one run and returns plain data:

    @dataclass
    class Config(GridConfig):
        output: str = "runs/staleness"  # folder for the runs

    results = results_of(config, train, runs, RESULTS)  # one dictionary for each run

A result holds the settings of its run and the data that `train` returned. OUTPUT/runs.json has a
line for every finished run, so that the same command continues where another one stopped.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from lessons.experiments.paired import LEVEL
from lessons.experiments.pool import in_parallel


@dataclass
class GridConfig:
    """The settings of every experiment."""

    seeds: int = 10  # seeds 0, 1, ... of every arm
    quick: bool = False  # a small version, in the folder OUTPUT-quick
    processes: int = 0  # runs at a time, of one thread each; 0 for one per core
    output: str = ""  # folder for the runs
    publish: bool = False  # update the committed results

    QUICK: ClassVar[dict] = {"seeds": 1}  # settings of the small version
    LEAST_SEEDS: ClassVar[int] = 1  # the fewest that can be compared
    FREE: ClassVar[set] = {"processes", "output", "publish", "experiments"}  # even with --publish

    def sized(self):
        """The config itself, or the one that --quick stands for. Raises SystemExit if there are too
        few seeds, if a setting contradicts --quick, or if it changes what --publish writes."""
        if self.seeds < self.LEAST_SEEDS:
            raise SystemExit(f"--seeds must be {self.LEAST_SEEDS} or more, not {self.seeds}")
        refuse_partial_publish(self, self.FREE)
        if not self.quick:
            return self
        changed = [name for name in changed_settings(self) if name in self.QUICK]
        if changed:
            raise SystemExit(f"--quick chooses {' and '.join(changed)} itself; leave that out")
        return replace(self, **self.QUICK, output=f"{self.output}-quick")


def changed_settings(config) -> list[str]:
    """The names of the settings that differ from their defaults."""
    return [field.name for field in fields(config) if getattr(config, field.name) != field.default]


def refuse_partial_publish(config, free: set[str]) -> None:
    """Raises SystemExit if --publish is given with a setting that is not one of the free ones."""
    changed = [name for name in changed_settings(config) if name not in free]
    if config.publish and changed:
        raise SystemExit(f"--publish is for the full experiment; leave out --{' --'.join(changed)}")


class Grid:
    """The folder of an experiment. It holds a file of results for each grid of runs."""

    def __init__(self, config: GridConfig, script: str) -> None:
        self.path = Path(config.output)
        self.processes = config.processes
        self.command = f"python lessons/experiments/{script}.py --publish"
        self.path.mkdir(parents=True, exist_ok=True)

    def run(self, function: Callable, runs: Sequence, name: str = "runs") -> list[dict]:
        """Make the runs that are not in the file NAME.json yet. Returns for each of `runs`, in
        order, its settings and what function(run) returned. Runs of other settings stay in the
        file, behind these."""
        path = self.path / f"{name}.json"
        names = [*asdict(runs[0])]
        wanted = {key(run): run for run in runs}
        finished: dict[str, dict] = {}
        for result in load_runs(path) if path.is_file() else []:
            finished[json.dumps({name: result[name] for name in names})] = result
        missing = [run for setting, run in wanted.items() if setting not in finished]

        def write() -> None:
            order = dict.fromkeys([*wanted, *finished])
            text = self.text([finished[setting] for setting in order if setting in finished])
            path.with_suffix(".tmp").write_text(text, "utf-8")
            path.with_suffix(".tmp").replace(path)  # at any time the file is whole

        def keep(i: int, result: dict) -> None:
            finished[key(missing[i])] = plain(asdict(missing[i]) | result)
            write()

        in_parallel(function, [(run,) for run in missing], self.processes, name, keep)
        write()  # in order, whatever was made before
        return [finished[key(run)] for run in runs]

    def text(self, results: list[dict]) -> str:
        """The text of a file of results: a line for each run."""
        lines = ",\n".join(map(json.dumps, results))
        return f'{{"command": "{self.command}", "runs": [\n{lines}\n]}}\n'

    def publish(self, path: Path, results: list[dict]) -> None:
        """Write results into a committed file."""
        path.write_text(self.text(results), "utf-8")
        print(f"written: {path}")


def results_of(config: GridConfig, function: Callable, runs: Sequence, path: Path) -> list[dict]:
    """The results of an experiment that has one grid; with --publish also written to the committed
    file at `path`."""
    grid = Grid(config, path.stem)
    results = grid.run(function, runs)
    if config.publish:
        grid.publish(path, results)
    return results


def key(run) -> str:
    """The settings of a run as a text."""
    return json.dumps(asdict(run))


def plain(data):
    """The same data as JSON would give it back; arrays become lists."""
    return json.loads(json.dumps(data, default=lambda array: array.tolist()))


def load_runs(path: Path) -> list[dict]:
    """The runs of a file of results: their settings and what was measured."""
    return json.loads(path.read_text("utf-8"))["runs"]


def rounded(data: dict) -> dict:
    """The same plain data with its floats to 4 significant digits."""
    return json.loads(json.dumps(data), parse_float=lambda text: float(f"{float(text):.4g}"))


def compact(value, levels: int) -> str:
    """JSON with a line for each entry of the first levels, which holds all that is below it."""
    if levels and value and isinstance(value, dict):
        entries = [
            f"{json.dumps(name)}: {compact(item, levels - 1)}" for name, item in value.items()
        ]
        return "{\n" + ",\n".join(entries) + "\n}"
    if levels and value and isinstance(value, list) and isinstance(value[0], str | dict):
        return "[\n" + ",\n".join(compact(item, levels - 1) for item in value) + "\n]"
    return json.dumps(value)


# ---------------------------------------------------------------------- tables and pages


def short(value: float, digits: int = 3) -> str:
    """A number without the 0 in front: .926"""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}")


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign: +1.2 or −1.2"""
    return f"{value:+.{digits}f}".replace("-", "−")


def cell(number: dict, digits: int = 3) -> str:
    """A mean with its interval, ".926 [.919, .932]", and if runs diverged the number of those that
    did not."""
    mean, *ends = (short(value, digits) for value in (number["mean"], *(number["interval"] or [])))
    seeds = number.get("seeds", [])
    counted = f" ({len(seeds) - seeds.count(None)} of {len(seeds)} runs)" if None in seeds else ""
    return f"{mean} [{', '.join(ends)}]{counted}" if ends else mean + counted


def change(comparison: dict, digits: int = 1, scale: float = 100) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", times the scale; bold if p < .05 after
    correction."""
    if comparison["difference"] is None:
        return ""
    mean = round(scale * comparison["difference"], digits) + 0.0  # + 0.0 turns -0.0 into 0.0
    text = signed(mean, digits)
    if comparison["interval"]:
        text += f" [{', '.join(signed(scale * end, digits) for end in comparison['interval'])}]"
    return f"**{text}**" if comparison.get("p_holm", 1) < LEVEL else text


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as GitHub reads it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    """Put texts into pages: by the path of the page and the name of the place. If one fails, no
    page is written."""
    pages = {path: into_page(path.read_text("utf-8"), of_page) for path, of_page in texts.items()}
    for path, page in pages.items():
        path.write_text(page, "utf-8")
