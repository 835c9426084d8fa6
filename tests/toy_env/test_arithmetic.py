"""The arithmetic task: problems, their split, and a verifier that no string fools or
crashes."""

import random
import re
from collections import Counter
from contextlib import suppress

import pytest

from toy_env.arithmetic import (
    LEVELS,
    Problem,
    extract_answer,
    held_out_problems,
    is_held_out,
    reward,
    sample_problem,
    sample_problems,
)

DRESS = " \t\r\n*$`\\()[]"  # characters that may stand around an answer


def running_totals(expression: str) -> list[int]:
    """All running totals, by Python itself."""
    parts = re.findall(r"[+-]?\d+", expression)
    return [eval("".join(parts[: n + 1])) for n in range(len(parts))]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("held_out", [False, True])
def test_problems_keep_the_rules(level, held_out):
    rng = random.Random(level)
    for _ in range(500):
        problem = sample_problem(level, rng, held_out)
        operands = [int(x) for x in re.findall(r"\d+", problem.expression)]
        totals = running_totals(problem.expression)
        assert problem.level == level == len(operands) - 1
        assert all(1 <= x <= 50 for x in operands)
        assert all(0 <= x <= 99 for x in totals)
        assert problem.answer == totals[-1]
        assert problem.prompt == problem.expression + "?"
        assert is_held_out(problem.expression) == held_out


def test_level_1_is_drawn_uniformly():
    """All training problems of level 1 come up, each about equally often, and no others."""
    every = [
        f"{a}{op}{b}"
        for a in range(1, 51)
        for b in range(1, 51)
        for op in "+-"
        if 0 <= a + int(op + str(b)) <= 99
    ]
    training = {expression for expression in every if not is_held_out(expression)}
    rng = random.Random(0)
    drawn = Counter(sample_problem(1, rng).expression for _ in range(15 * len(training)))
    assert set(drawn) == training
    chi_square = sum((count - 15) ** 2 / 15 for count in drawn.values())
    five_deviations = 5 * (2 * len(training)) ** 0.5
    assert abs(chi_square - len(training)) < five_deviations


def test_the_split_is_fixed():
    """In every process. A new split would hold out problems that the shipped base model was trained
    on."""
    held_out = [f"{a}+{b}" for a in range(1, 9) for b in range(1, 9) if is_held_out(f"{a}+{b}")]
    assert held_out == ["1+7", "2+1", "2+2", "2+4", "2+7", "4+3", "4+7", "5+2", "5+6", "7+6", "8+4"]


def test_held_out_problems_are_never_trained_on():
    problems = held_out_problems(64)
    assert problems == held_out_problems(64)
    assert Counter(problem.level for problem in problems) == dict.fromkeys(LEVELS, 64)
    assert len({problem.expression for problem in problems}) == 256
    trained = {problem.expression for problem in sample_problems(20_000, LEVELS, random.Random(0))}
    assert not trained & {problem.expression for problem in problems}
    assert held_out_problems(8, levels=[3]) == [p for p in held_out_problems(8) if p.level == 3]


NO_INTEGER = [  # no "#", or something other than one integer behind the last
    "39", "", "#", "39#", "#--39", "#- 39", "#3 9", "#39 apples", "#39..", "#39.0", "#78/2", "#3e1",
    "#0x27", "#3_9", "#1000000000", "#" + "9" * 10_000, "#__import__('os').getpid()", "#39<pad>",
    "#12*39", "#39;", "#1,039",
    "#٣٩", "#３９", "\uff0339", "#39\u00a0", "#\u221239", "#\ud800", "#39\x00",  # Unicode and NUL
    "#{39}", "#12 or #39 or neither", "#(12)(39)", "The answer is 39.", "<answer>39</answer>",
    r"\boxed{3}9", r"\boxed{39} or \boxed{12} or so", r"\boxed{39", r"\boxed39", r"\boxed{}39",
    r"\boxed{#}39", r"-\boxed{-39}", r"\boxed{\text{39}}", r"\boxed{{39}}", r"\boxed{12, 39}",
    r"\boxed{39}}", r"#39 \boxed{}",
]  # fmt: skip
ANSWERS = {
    39: [
        "#39", "29+46=75;75-36=39;#39", "#12#39", "#+39", "#039", " # 39 \n", "#39. \n", "\x00#39",
        "#" + "0" * 10_000 + "39", "#" * 10_000 + "39",
        # as chat models write it: bold, code, mathematics, a box
        "The value is **#39**.", "# **39**", "`#39`", "#$39$", "#\\(39\\)",
        r"Thus it is $\boxed{39}$.", "\\[\n\\boxed{39}\n\\]", r"#\boxed{39}", r"\boxed{#39}",
        r"\boxed{12}\boxed{39}", r"- \boxed{39}",
    ],
    12: ["#39#12", r"\boxed{39}#12"],
    -39: ["#-39", "#-0039", r"\boxed{ -39 }", r"-\boxed{39}"],
    0: ["#-0", "#000"],
    999_999_999: ["#999999999"],
    None: NO_INTEGER,
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_verifier(answer):
    for completion in ANSWERS[answer]:
        assert extract_answer(completion) == answer, completion
        for truth in (39, 0, 12):
            assert reward(Problem("", truth, 1), completion) == float(answer == truth)


def oracle(text: str) -> int | None:
    """The verifier's rule for a text without a box, by Python's own `int`."""
    _, found, tail = text.rpartition("#")
    front, _, behind = tail.rpartition(".")
    if front and not behind.strip(DRESS):  # a full stop at the end
        tail = front
    bare = tail.strip(DRESS)
    if found and set(bare) <= {*"+-0123456789"}:
        with suppress(ValueError):
            return int(bare) if abs(int(bare)) < 10**9 else None
    return None


def test_verifier_on_random_strings():
    """Equal to the oracle everywhere, so it accepts no wrong answer; a third of the strings hold
    one integer."""
    rng = random.Random(0)
    pieces = [*"0123456789##+-=;? \n\t.*$`()[]{}", "39}", "#39", "# 39", "39\n", "00", "e", "_"]
    pieces += ["٣", "３", "\x00", "\u00a0", "\u2003"]
    accepted = 0
    for _ in range(20_000):
        completion = "".join(rng.choices(pieces, k=rng.randint(0, 9)))
        if rng.random() < 0.5:
            before, after = rng.choice(["", " ", "-", "+", "0", "x"]), rng.choice(["", "\n", " a"])
            completion += f"#{before}{rng.randint(0, 120)}{after}"
        answer = extract_answer(completion)
        assert answer == oracle(completion), completion
        accepted += answer is not None
    assert accepted > 6_000
