"""The second task: targets, the split, and a verifier that no string can fool, crash or slow down."""

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from algorithms import grpo
from toy_env import UsageError, expressions, tasks
from toy_env.expressions import Problem, extract_answer, held_out_problems, reward, sample_problems
from toy_env.model import BASE_MODEL


def oracle(completion: str) -> int | None:
    """The verifier's rule again, as a loop over single characters."""
    start = None
    for position, character in enumerate(completion):
        if character == "#":
            start = position + 1
    if start is None:
        return None
    total, sign, digits, terms = 0, 1, "", 0
    for character in completion[start:] + "+":
        if "0123456789".find(character) >= 0:
            digits += character
        elif character in ("+", "-") and 1 <= len(digits) <= 2 and digits[0] != "0":
            total, terms, digits = total + sign * (10 * int(digits[:-1] or 0) + int(digits[-1])), terms + 1, ""
            sign = 1 if character == "+" else -1
        else:
            return None
    return total if terms > 1 else None


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#12+27", 39),
        ("#50-11", 39),
        ("#40-2+1", 39),
        ("#1-99", -98),
        ("#5+5#12+27", 39),  # several: the last one counts
        ("#12+27#", None),
        ("=;#12+27", 39),
        ("#39", None),  # repeats the target
        ("#39+0", None),
        ("#0+39", None),
        ("#-11+50", None),
        ("#+39", None),
        ("#012+27", None),
        ("#100-61", None),
        ("#12+27+", None),
        ("#12++27", None),
        ("#12+-27", None),
        ("#12 + 27", None),
        ("#12+27\n", None),
        ("#12+27=39", None),
        ("#12+27?", None),
        ("12+27", None),
        ("", None),
        ("#", None),
        ("#٣+3", None),  # Unicode digits that int() would read
        ("#1\u22121", None),
        ("#3*13", None),
        ("#__import__('os').getpid()", None),
        ("#12+27\x00", None),
        ("#\ud800", None),
    ],
)
def test_verifier(completion, answer):
    assert extract_answer(completion) == oracle(completion) == answer
    for target in (39, 1, 98):
        assert reward(Problem(target), completion) == float(answer is not None and answer == target)


@pytest.mark.slow
def test_verifier_on_a_million_strings():
    """Agrees with the oracle everywhere, so it accepts no wrong answer; it never raises; a third are well formed."""
    rng = random.Random(0)
    pieces = [*"0123456789", *"##++--=;? \n.", "12+27", "#50-11", "٣", "\x00", "+1", "-99"]
    accepted = answered = 0
    for _ in range(1_000_000):
        completion = "".join(rng.choices(pieces, k=rng.randrange(5)))
        if rng.random() < 0.5:
            completion += (
                f"#{rng.randint(0, 101)}{rng.choice('+-')}{rng.randint(0, 101)}{rng.choice(['', '', '+1', ' '])}"
            )
        found = extract_answer(completion)
        assert found == oracle(completion), completion
        answered += found is not None
        accepted += reward(Problem(39), completion) == 1
    assert answered > 300_000 and accepted > 3_000


@pytest.mark.parametrize("unit", ["#", "1", "+", "1+", "9-9", "#1+1", "0", " "])
def test_verifier_takes_linear_time(unit):
    def seconds(n: int) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            for text in (f"#{unit * n}", f"#{unit * n}39", f"#{unit * n}x"):
                extract_answer(text)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(100_000) < 60 * seconds(5_000)  # 20 times the length; quadratic would be 400 times


def test_targets_are_split_once_and_for_all():
    held_out = held_out_problems(expressions.MOST_HELD_OUT[1])
    drawn = Counter(problem.answer for problem in sample_problems(20_000, (), random.Random(0)))
    assert set(drawn) | {problem.answer for problem in held_out} == set(range(10, 100))
    assert not set(drawn) & {problem.answer for problem in held_out}
    assert held_out_problems(5) == held_out_problems(5) != held_out_problems(5, seed=1)
    assert len({problem.answer for problem in held_out_problems(10)}) == 10
    assert Problem(39).prompt == "39?"
    with pytest.raises(ValueError, match="there are"):
        held_out_problems(100)


def test_the_task_in_the_readme_runs(tmp_path, monkeypatch):
    """Through grpo.py, as a module of the reader's own, with the base of arithmetic for a model."""
    text = (Path(expressions.__file__).parent / "README.md").read_text("utf-8")
    (tmp_path / "my_tasks").mkdir()
    code = text.split("<!-- task -->\n```python\n")[1].split("```\n<!-- /task -->")[0]
    (tmp_path / "my_tasks/backwards.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    task = tasks.load_task("my_tasks.backwards")
    held_out = {problem.prompt for problem in task.held_out_problems(9)}
    assert (
        task.MOST_HELD_OUT.keys() == {2, 3}
        and len(held_out) == 18
        and not held_out & {p.prompt for p in task.sample_problems(500, (), random.Random(0))}
    )
    assert [task.reward(task.Problem("39?", "93", 2), text) for text in ("#93", "#39", "93", "#93 ")] == [1, 0, 0, 0]
    folder = tmp_path / "run"
    grpo.train(
        grpo.Config(
            task="my_tasks.backwards",
            model=str(BASE_MODEL),
            steps=2,
            prompts_per_step=4,
            group_size=4,
            eval_problems=2,
            max_new_tokens=8,
            device="cpu",
            run_dir=str(folder),
        )  # fmt: skip
    )
    assert json.loads((folder / "results.json").read_text("utf-8"))["before"]["problems"] == 4


def test_a_task_is_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("broken").mkdir()
    Path("broken/broken.py").write_text("\n\n1 / 0\n", "utf-8")
    Path("broken/empty.py").write_text(
        "from toy_env.arithmetic import *\nfrom toy_env.arithmetic import extract_answer\nLEVELS = ()\n", "utf-8"
    )
    assert tasks.load_task("arithmetic").LEVELS == (1, 2, 3, 4)
    assert tasks.load_task("toy_env.expressions") is expressions
    for name, message in {
        "algebra": "there is no task 'algebra'",
        "cli": "'cli' is no task: it has no",
        ".x": "no task",
    }.items():
        with pytest.raises(UsageError, match=message):
            tasks.load_task(name)
    with pytest.raises(UsageError, match=r"ZeroDivisionError: .* \(broken.py, line 3\)"):
        tasks.load_task("broken.broken")
    with pytest.raises(UsageError, match="LEVELS must be a tuple of one level or more"):
        tasks.load_task("broken.empty")
    package = Path("raising")
    package.mkdir()
    (package / "__init__.py").write_text("int('x')\n", "utf-8")
    (package / "task.py").touch()
    with pytest.raises(UsageError, match=r"'raising.task' is no task: ValueError: .* \(__init__.py, line 1\)"):
        tasks.load_task("raising.task")
    for i, (change, message) in enumerate(
        {
            "LEVELS = 3": "LEVELS must be a tuple of one level or more, not 3",
            "MOST_HELD_OUT = [9, 9]": "MOST_HELD_OUT must be a dictionary, of a number for every level, not",
            "MOST_HELD_OUT = {1: 767}": "MOST_HELD_OUT must have 1 or more problems of level 2, not 0",
            "def reward(problem, completion): return None": "reward must be a finite number, not None",
            "def reward(problem, completion): return 1e999": "reward must be a finite number, not inf",
            "def reward(problem, completion): return 1 / 0": r"ZeroDivisionError: division by zero \(task_5.py, line 3",
            "def sample_problems(n, levels, rng): return []": "2 training and 2 held-out problems .* gives \\[0, 2\\]",
            "def held_out_problems(n, levels): return []": "of 2 training and 2 held-out problems .* gives \\[2, 0\\]",
        }.items()
    ):
        Path(f"broken/task_{i}.py").write_text(f"from toy_env.arithmetic import *\n\n{change}\n", "utf-8")
        with pytest.raises(UsageError, match=message):
            tasks.load_task(f"broken.task_{i}")
    with pytest.raises(UsageError, match="no base model for the task 'json'; give one with --model"):
        tasks.base_model(__import__("json"))
