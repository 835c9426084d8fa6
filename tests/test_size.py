"""How much there is to read: in one training step, in toy_env, and in the whole repository.

`python tests/test_size.py` prints the functions that one step of grpo.py executes, and the lines of
every folder.
"""

import inspect
import sys
import tempfile
from collections import Counter
from pathlib import Path

from algorithms import grpo

ROOT = Path(__file__).parent.parent
READ = ("algorithms/grpo.py", "toy_env/rollout.py", "toy_env/arithmetic.py", "toy_env/metrics.py")
MOST_READ = 420  # lines of the functions of these four files that a step executes, read whole
MOST_BESIDE = (
    250  # lines of what else it executes: bookkeeping, the tokenizer, and what serves other models
)
MOST_TOY_ENV, MOST_IN_A_FILE = 2_200, 250
MOST_SOURCE = 13_000  # lines of Python and JavaScript outside tests and lessons/src
MOST_TESTS = 8_500


def executed_by_a_step() -> dict[tuple[str, str], set[int]]:
    """(file, function): the line numbers of every function of ours that the second step of grpo.py
    calls."""
    functions: dict[tuple[str, str], set[int]] = {}
    steps = grpo.Run.steps

    def note(frame, event: str, _) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and not code.co_name.startswith("<"):
            lines, first = inspect.getsourcelines(code)
            key = (path.relative_to(ROOT).as_posix(), code.co_qualname.removesuffix(".<locals>"))
            functions.setdefault(key, set()).update(range(first, first + len(lines)))

    def traced_steps(run):
        for step in steps(run):
            sys.setprofile(note if step == 2 else None)  # set-up and the self-check are over
            yield step
        sys.setprofile(None)

    grpo.Run.steps = traced_steps
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "prompts_per_step": 8,
                "eval_problems": 1,
                "eval_every": 0,
                "save_every": 3,
                "device": "cpu",
            }
            grpo.train(grpo.Config(steps=3, run_dir=f"{folder}/run", **settings))
    finally:
        grpo.Run.steps = steps
        sys.setprofile(None)
    train = grpo.train.__code__
    lines, first = inspect.getsourcelines(train)
    functions["algorithms/grpo.py", "train"] = set(range(first, first + len(lines)))
    return functions


def lines_by_file(functions: dict[tuple[str, str], set[int]]) -> Counter:
    """Lines of each file in at least one of the functions: a function within another counts
    once."""
    files: dict[str, set[int]] = {}
    for (file, _), lines in functions.items():
        files.setdefault(file, set()).update(lines)
    return Counter({file: len(lines) for file, lines in files.items()})


def lines_of(*patterns: str, but: tuple[str, ...] = ()) -> dict[str, int]:
    """Lines of the files that match, by path."""
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    names = [name for name in names if not name.startswith(but)]
    return {name: len((ROOT / name).read_text("utf-8").splitlines()) for name in names}


def source_lines() -> dict[str, int]:
    folders = ("algorithms", "lessons", "toy_env")
    return lines_of(
        *(f"{folder}/**/*.{kind}" for folder in folders for kind in ("py", "js")),
        but=("lessons/src/", "lessons/html/"),
    )


def test_a_step_is_read_in_one_sitting(no_curves):
    files = lines_by_file(executed_by_a_step())
    assert set(READ) <= files.keys()
    read = sum(files[file] for file in READ)
    assert read <= MOST_READ and files.total() - read <= MOST_BESIDE, files
    assert len((ROOT / "toy_env/rollout.py").read_text("utf-8").splitlines()) <= 200


def test_the_house_stays_light():
    toy_env = lines_of("toy_env/*.py")
    assert sum(toy_env.values()) <= MOST_TOY_ENV and max(toy_env.values()) <= MOST_IN_A_FILE, (
        toy_env
    )
    assert sum(source_lines().values()) <= MOST_SOURCE
    assert sum(lines_of("tests/**/*.py").values()) <= MOST_TESTS


if __name__ == "__main__":
    functions = executed_by_a_step()
    files = lines_by_file(functions)
    print("\nFunctions that one step of grpo.py executes after the set-up, in lines")
    for file in sorted(files, key=lambda file: file not in READ):
        names = ", ".join(
            f"{name} {len(lines)}" for (other, name), lines in functions.items() if other == file
        )
        print(f"  {files[file]:4} {file}: {names}")
    print(
        f"  {sum(files[file] for file in READ):4} in the four files to read; {files.total()} in all"
    )
    folders = Counter()
    for name, count in source_lines().items():
        folders["/".join(name.split("/")[:-1])] += count
    print("\nPython and JavaScript, in lines (lessons/src aside)")
    for folder, count in folders.items():
        print(f"  {count:6,} {folder}")
    tests = sum(lines_of("tests/**/*.py").values())
    print(f"  {folders.total():6,} in all; {tests:,} in tests")
