"""The second task: targets, the split, and a verifier that no string can fool, crash or slow
down."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import takes_linear_time

from algorithms import grpo
from toy_env import UsageError, arithmetic, expressions, tasks
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
            total, terms, digits = (
                total + sign * (10 * int(digits[:-1] or 0) + int(digits[-1])),
                terms + 1,
                "",
            )
            sign = 1 if character == "+" else -1
        else:
            return None
    return total if terms > 1 else None


@pytest.mark.parametrize(
    ("answer", "completions"),
    [
        (
            39,
            ["#12+27", "#50-11", "#40-2+1", "=;#12+27", "#5+5#12+27"],
        ),  # of several, the last one counts
        (-98, ["#1-99"]),
        (
            None,
            ["#39", "#39+0", "#0+39", "#-11+50", "#+39", "#012+27", "#100-61"],
        ),  # no sum of numbers from 1 to 99
        (
            None,
            [
                "#12+27+",
                "#12++27",
                "#12+-27",
                "#3*13",
                "#12+27=39",
                "#12+27?",
                "#12 + 27",
                "#12+27\n",
                "#12+27\x00",
            ],
        ),
        (None, ["12+27", "", "#", "#12+27#", "#__import__('os').getpid()"]),
        (None, ["#٣+3", "#1\u22121", "#\ud800"]),  # Unicode, of which int() would read the first
    ],
)
def test_verifier(answer, completions):
    for completion in completions:
        assert extract_answer(completion) == oracle(completion) == answer, completion
        for target in (39, 1, 98):
            assert reward(Problem(target), completion) == float(
                answer is not None and answer == target
            )


@pytest.mark.slow
def test_verifier_on_a_million_strings():
    """Agrees with the oracle everywhere, so it accepts no wrong answer; it never raises; a third
    are well formed."""
    rng = random.Random(0)
    pieces = [*"0123456789", *"##++--=;? \n.", "12+27", "#50-11", "٣", "\x00", "+1", "-99"]
    accepted = answered = 0
    for _ in range(1_000_000):
        completion = "".join(rng.choices(pieces, k=rng.randrange(5)))
        if rng.random() < 0.5:
            completion += f"#{rng.randint(0, 101)}{rng.choice('+-')}{rng.randint(0, 101)}{rng.choice(['', '', '+1', ' '])}"
        answer = extract_answer(completion)
        assert answer == oracle(completion), completion
        answered += answer is not None
        accepted += reward(Problem(39), completion) == 1
    assert answered > 300_000 and accepted > 3_000


@pytest.mark.parametrize("unit", ["#", "1", "+", "1+", "9-9", "#1+1", "0", " "])
def test_verifier_takes_linear_time(unit):
    assert takes_linear_time(extract_answer, unit)


def test_targets_are_split_once_and_for_all():
    held_out = held_out_problems(expressions.MOST_HELD_OUT[1])
    drawn = Counter(problem.answer for problem in sample_problems(20_000, (), random.Random(0)))
    assert set(drawn) | {problem.answer for problem in held_out} == set(range(10, 100))
    assert not set(drawn) & {problem.answer for problem in held_out}
    assert held_out_problems(5) == held_out_problems(5) != held_out_problems(5, seed=1)
    assert len({problem.answer for problem in held_out_problems(10)}) == 10
    assert Problem(39).prompt == "39?"
    with pytest.raises(ValueError, match="larger than population"):
        held_out_problems(100)


@pytest.fixture
def my_tasks(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder of modules below the working directory; they are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    folder = Path("my_tasks")
    folder.mkdir()
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_tasks"]:
        del sys.modules[name]


def test_the_task_in_the_readme_runs(my_tasks, tmp_path, train):
    """Through grpo.py, as a module of the reader's own, with the base of arithmetic for a model."""
    text = (Path(expressions.__file__).parent / "README.md").read_text("utf-8")
    code = text.split("<!-- task -->\n```python\n")[1].split("```\n<!-- /task -->")[0]
    (my_tasks / "rounded.py").write_text(code, "utf-8")
    task = tasks.load_task("my_tasks.rounded")
    held_out = {problem.prompt: problem for problem in task.held_out_problems(9)}
    assert len(held_out) == 36 and {problem.answer % 10 for problem in held_out.values()} == {0}
    assert not held_out.keys() & {
        problem.prompt for problem in task.sample_problems(500, (), random.Random(0))
    }
    problem = task.rounded(arithmetic.Problem("29+46-40", 35, 2))
    assert [
        task.reward(problem, text) for text in ("#40", "#35", "40", "29+46=75;75-40=35;#40")
    ] == [1, 0, 0, 1]
    train(grpo, task="my_tasks.rounded", model=str(BASE_MODEL), max_new_tokens=8)
    assert json.loads((tmp_path / "run/results.json").read_text("utf-8"))["before"]["problems"] == 4


def test_a_task_is_a_module(my_tasks):
    assert tasks.load_task("arithmetic").LEVELS == (1, 2, 3, 4)
    assert tasks.load_task("toy_env.expressions") is expressions
    (my_tasks / "half.py").write_text("from toy_env.arithmetic import LEVELS\n", "utf-8")
    (my_tasks / "broken.py").write_text("int('x')\n", "utf-8")
    (my_tasks / "needs.py").write_text("import not_installed\n", "utf-8")
    for name, error, message in (
        ("algebra", UsageError, "there is no task 'algebra'"),
        (".x", UsageError, "there is no task '.x'"),
        ("my_tasks.none", UsageError, "there is no task 'my_tasks.none'"),
        ("cli", UsageError, "'cli' is no task: it has no LEVELS"),
        ("my_tasks.half", UsageError, "'my_tasks.half' is no task: it has no MOST_HELD_OUT"),
        (
            "my_tasks.broken",
            ValueError,
            "invalid literal",
        ),  # an error of the reader's own, with its traceback
        ("my_tasks.needs", ModuleNotFoundError, "not_installed"),
    ):
        with pytest.raises(error, match=message):
            tasks.load_task(name)
    with pytest.raises(
        UsageError, match="no base model for the task 'json'; --model takes toy_env"
    ):
        tasks.base_model(json)
