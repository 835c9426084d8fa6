"""One harness for experiments: a grid of runs made in parallel and kept as they finish, tables, and
pages.

An experiment declares what a run is (a frozen dataclass of its settings), which runs there are, and
a function that makes one and returns plain data:

    Config = config_of("staleness", seeds=10, quick=2)      the flags of the command
    results = results_of(config, train, runs, RESULTS)      a dictionary for each run: its settings and what train
                                                            returned; with --publish they are the committed ones

OUTPUT/runs.json holds a line for every finished run, so that the same command continues where
another one stopped.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from lessons.experiments.paired import LEVEL
from lessons.experiments.pool import in_parallel
from toy_env import UsageError
from toy_env.cli import at_least
from toy_env.save import RunFolder

FREE = {
    "processes",
    "output",
    "publish",
    "experiments",
}  # settings that --publish leaves to the user


@dataclass
class GridConfig:
    """The settings of every experiment."""

    quick: bool = False  # a small version, in the folder OUTPUT-quick
    processes: at_least(0) = 0  # runs at a time, of one thread each; 0 for one per core
    output: str = ""  # folder for the runs
    publish: bool = False  # update the committed results

    QUICK: ClassVar[dict] = {}  # the settings of the small version

    def check(self) -> None:
        """Raises UsageError if settings contradict --quick, or change what --publish would
        write."""
        changed = [name for name in changed_settings(self) if name in self.QUICK]
        if self.quick and changed:
            raise UsageError(
                f"--quick chooses {' and '.join(self.QUICK)} itself; leave out --{' --'.join(changed)}"
            )
        refuse_partial_publish(self, FREE)

    def sized(self):
        """The config itself, or the one that --quick stands for."""
        return replace(self, **self.QUICK, output=f"{self.output}-quick") if self.quick else self


def config_of(name: str, seeds: int, quick: int) -> type[GridConfig]:
    """The settings of an experiment with so many seeds in its arms, or with --quick the fewest that
    make sense."""
    most, fewer = seeds, quick

    @dataclass
    class Config(GridConfig):
        seeds: at_least(fewer, 1000) = most  # seeds 0, 1, ... of every arm
        output: str = f"runs/{name}"  # folder for the runs

        QUICK: ClassVar[dict] = {"seeds": fewer}

    return Config


def changed_settings(config) -> list[str]:
    """The names of the settings that differ from their defaults."""
    return [field.name for field in fields(config) if getattr(config, field.name) != field.default]


def refuse_partial_publish(config, free: set[str]) -> None:
    """Raises UsageError if --publish is set and a setting that is not among the free ones differs
    from its default."""
    changed = [name for name in changed_settings(config) if name not in free]
    if config.publish and changed:
        raise UsageError(f"--publish is for the full experiment; leave out --{' --'.join(changed)}")


class Grid:
    """An experiment's folder, which one process at a time holds, and a file of results in it for
    each grid of runs.

    Raises UsageError if the folder cannot be made or another process holds it.
    """

    def __init__(self, config: GridConfig, script: str) -> None:
        self.processes, self.command = (
            config.processes,
            f"python lessons/experiments/{script}.py --publish",
        )
        try:
            self.folder = RunFolder(config.output, "")
        except UsageError as error:
            raise UsageError(str(error).replace("--run_dir", "--output")) from None
        self.path = self.folder.path

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.folder.release()

    def run(self, function: Callable, runs: Sequence, name: str = "runs") -> list[dict]:
        """The settings of each run, in order, with the plain data that function(run) returned; runs
        that are in the file NAME.json are not made again. Runs of other settings in that file stay
        there, behind these.

        Raises UsageError if the file is damaged or holds runs with other names of settings.
        """
        path, wanted = self.path / f"{name}.json", {key(asdict(run)): run for run in runs}
        finished = self.read(path, [*asdict(runs[0])])
        missing = [run for setting, run in wanted.items() if setting not in finished]

        def write() -> None:
            order = [setting for setting in wanted if setting in finished]
            order += [setting for setting in finished if setting not in wanted]
            self.folder.write(path.name, self.text([finished[setting] for setting in order]))

        def keep(i: int, result: dict) -> None:
            if clash := sorted(result.keys() & asdict(missing[i]).keys()):
                raise ValueError(f"{clash[0]!r} is the name of a setting and of a result")
            finished[key(asdict(missing[i]))] = plain(asdict(missing[i]) | result)
            write()

        in_parallel(function, [(run,) for run in missing], self.processes, name, keep)
        write()  # in order, whatever was made before
        return [finished[key(asdict(run))] for run in runs]

    def read(self, path: Path, settings: list[str]) -> dict[str, dict]:
        """The finished runs of a file by their settings."""
        try:
            runs = load_runs(path) if path.is_file() else []
            return {key({name: run[name] for name in settings}): run for run in runs}
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"{path} is damaged or of another version; delete it, or choose another --output"
            ) from None

    def text(self, results: list[dict]) -> str:
        """The text of a file of results: a line for each run."""
        lines = ",\n".join(map(json.dumps, results))
        return f'{{"command": "{self.command}", "runs": [\n{lines}\n]}}\n'

    def publish(self, path: Path, results: list[dict]) -> None:
        """Write results into a committed file."""
        path.write_text(self.text(results), "utf-8")
        print(f"written: {path}")


def results_of(config: GridConfig, function: Callable, runs: Sequence, path: Path) -> list[dict]:
    """The runs of an experiment that has one grid; with --publish also written to the committed
    file at `path`."""
    with Grid(config, path.stem) as grid:
        results = grid.run(function, runs)
        if config.publish:
            grid.publish(path, results)
    return results


def key(settings: dict) -> str:
    return json.dumps(settings)


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
    """JSON in which each entry of the first levels has a line of its own, which holds all that is
    below it."""
    if (
        not levels
        or not value
        or not isinstance(value, dict | list)
        or not isinstance([*value][0], str | dict)
    ):
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(compact(item, levels - 1) for item in value) + "\n]"
    entries = (f"{json.dumps(name)}: {compact(item, levels - 1)}" for name, item in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


# ---------------------------------------------------------------------- numbers in tables and sentences


def short(value: float, digits: int = 3) -> str:
    """.926"""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:,.{digits}f}")


def signed(value: float, digits: int = 1) -> str:
    """+1.2 or −1.2"""
    return f"{value:+.{digits}f}".replace("-", "−")


def cell(number: dict, digits: int = 3) -> str:
    """Mean and interval, ".926 [.919, .932]", and the number of runs that have a value, where some
    diverged."""
    mean, *ends = (short(value, digits) for value in (number["mean"], *(number["interval"] or [])))
    seeds = number.get("seeds", [])
    counted = f" ({len(seeds) - seeds.count(None)} of {len(seeds)} runs)" if None in seeds else ""
    return f"{mean} [{', '.join(ends)}]{counted}" if ends else mean + counted


def change(comparison: dict, digits: int = 1, scale: float = 100) -> str:
    """A difference with its interval, "+1.2 [+0.3, +2.1]", times the scale; bold if p < .05 after
    correction."""
    if comparison["difference"] is None:
        return ""
    mean = (
        round(scale * comparison["difference"], digits) + 0.0
    )  # never "−0.0"; an interval's ends keep their sign
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

    Raises UsageError if the page has no such place.
    """
    for name, text in texts.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in page or end not in page:
            raise UsageError(f"the page has no place for {name!r}: it needs {start} and {end}")
        before, rest = page.split(start)
        page = f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"
    return page


def write_pages(texts: dict[Path, dict[str, str]]) -> None:
    """Put texts into pages: by the path of the page and the name of the place. If one fails, no
    page is written."""
    pages = {path: into_page(path.read_text("utf-8"), of_page) for path, of_page in texts.items()}
    for path, page in pages.items():
        path.write_text(page, "utf-8")
