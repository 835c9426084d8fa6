"""The second task and tasks of one's own: targets, their split, a verifier that no string fools or
crashes, and the time that verifiers take."""

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from algorithms import grpo
from toy_env import arithmetic, expressions, questions, tasks
from toy_env.expressions import Problem, extract_answer, held_out_problems, reward, sample_problems
from toy_env.model import BASE_MODEL

TERMS = {str(n) for n in range(1, 100)}


def oracle(completion: str) -> int | None:
    """The verifier's rule again: terms from a list, and the value by Python itself."""
    _, found, tail = completion.rpartition("#")
    terms = re.split("[+-]", tail)
    return eval(tail) if found and len(terms) > 1 and TERMS.issuperset(terms) else None


VALUES = {
    39: ["#12+27", "#50-11", "#40-2+1", "=;#12+27", "#5+5#12+27"],
    -98: ["#1-99"],
    None: [
        "#39", "#39+0", "#0+39", "#-11+50", "#+39", "#012+27", "#100-61",  # no sum of 1 to 99
        "#12+27+", "#12++27", "#12+-27", "#3*13", "#12+27=39", "#12 + 27", "#12+27\n", "#12+27\x00",
        "12+27", "", "#", "#12+27#", "#__import__('os').getpid()",
        "#٣+3", "#1\u22121", "#\ud800",  # Unicode
    ],
}  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_verifier(value):
    for completion in VALUES[value]:
        assert extract_answer(completion) == oracle(completion) == value, completion
        for target in (39, 1, 98):
            assert reward(Problem("", target, 1), completion) == float(value == target)


def test_verifier_on_random_strings():
    """Equal to the oracle everywhere, so it accepts no wrong answer; a third of the strings are
    well formed."""
    rng = random.Random(0)
    pieces = [*"0123456789##++--=;? \n.", "12+27", "#50-11", "٣", "\x00", "+1", "-99"]
    accepted = answered = 0
    for _ in range(20_000):
        completion = "".join(rng.choices(pieces, k=rng.randrange(5)))
        if rng.random() < 0.5:
            tail = rng.choice(["", "", "+1", " "])
            completion += f"#{rng.randint(0, 101)}{rng.choice('+-')}{rng.randint(0, 101)}{tail}"
        value = extract_answer(completion)
        assert value == oracle(completion), completion
        answered += value is not None
        accepted += reward(Problem("39", 39, 1), completion) == 1
    assert answered > 6_000 and accepted > 60


UNITS = ["0", "1", " ", " . ", "1+", "#1 ", "#1+1", "1,111", "is ", "#1\n", "answer is 1\n"]
UNITS += ["\\boxed{", "\\boxed{1"]


@pytest.mark.parametrize("task", [arithmetic, expressions, questions])
@pytest.mark.parametrize("unit", UNITS)
def test_every_verifier_takes_linear_time(task, unit):
    """Half a second for 50,000 characters. Quadratic time would be ten seconds."""
    start = time.process_time()
    for end in ("", "39", "x"):
        task.extract_answer("#" + unit * (50_000 // len(unit)) + end)
    assert time.process_time() - start < 0.5


def test_the_split():
    held_out = held_out_problems(90)
    drawn = Counter(problem.answer for problem in sample_problems(20_000, (), random.Random(0)))
    assert set(drawn) | {problem.answer for problem in held_out} == set(range(10, 100))
    assert not set(drawn) & {problem.answer for problem in held_out}
    assert held_out_problems(5) == held_out_problems(5)
    assert len({problem.answer for problem in held_out_problems(10)}) == 10
    assert {problem.prompt for problem in held_out} == {f"{p.answer}?" for p in held_out}


@pytest.fixture
def my_tasks(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty folder for modules below the working directory, forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    folder = Path("my_tasks")
    folder.mkdir()
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_tasks"]:
        del sys.modules[name]


def test_the_task_in_the_readme_runs(my_tasks, tmp_path, train):
    """As a module of the reader's own, trained by grpo.py from the base of arithmetic."""
    text = (Path(expressions.__file__).parent / "README.md").read_text("utf-8")
    code = text.split("<!-- task -->\n```python\n")[1].split("```\n<!-- /task -->")[0]
    (my_tasks / "rounded.py").write_text(code, "utf-8")
    task = tasks.find_module("my_tasks.rounded")
    held_out = task.held_out_problems(9)
    assert len(held_out) == 36 and {problem.answer % 10 for problem in held_out} == {0}
    problem = task.rounded(arithmetic.Problem("29+46-40", 35, 2))
    texts = ("#40", "#35", "40", "29+46=75;75-40=35;#40")
    assert [task.reward(problem, text) for text in texts] == [1, 0, 0, 1]
    train(grpo, task="my_tasks.rounded", model=str(BASE_MODEL), max_new_tokens=8)
    assert json.loads((tmp_path / "run/results.json").read_text("utf-8"))["before"]["problems"] == 4


def test_a_task_is_a_module(my_tasks):
    assert tasks.find_module("arithmetic").LEVELS == (1, 2, 3, 4)
    assert tasks.find_module("toy_env.expressions") is expressions
    (my_tasks / "broken.py").write_text("int('x')\n", "utf-8")
    (my_tasks / "needs.py").write_text("import not_installed\n", "utf-8")
    with pytest.raises(ValueError, match="invalid literal"):
        tasks.find_module("my_tasks.broken")
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        tasks.find_module("my_tasks.needs")
    with pytest.raises(SystemExit):
        tasks.base_model(json)
