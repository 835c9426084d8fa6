"""The task: problems, the split, and a verifier that no string can fool, crash or slow down."""

import random
import re
from collections import Counter

import pytest
from conftest import python, takes_linear_time

from toy_env.arithmetic import (
    LEVELS,
    Problem,
    extract_answer,
    held_out_problems,
    is_held_out,
    reward,
    sample_problem,
    sample_problems,
    steps,
)

DRESS = " \t\r\n*$`\\()[]"  # what may stand around an answer


def running_totals(expression: str) -> list[int]:
    """All running totals, by a character loop that shares nothing with toy_env."""
    totals, sign, digits = [0], 1, ""
    for character in expression + "+":
        if character.isdigit():
            digits += character
        else:
            totals.append(totals[-1] + sign * int(digits))
            sign, digits = (1 if character == "+" else -1), ""
    return totals[1:]


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
        assert [total for _, total in steps(problem)] == totals[1:]
        assert is_held_out(problem.expression) == held_out


def test_level_1_covers_its_split_uniformly():
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
    drawn = Counter(sample_problem(1, rng).expression for _ in range(40 * len(training)))
    assert set(drawn) == training
    chi_square = sum((count - 40) ** 2 / 40 for count in drawn.values())
    assert (
        abs(chi_square - len(training)) < 5 * (2 * len(training)) ** 0.5
    )  # five standard deviations


def test_the_split_is_the_same_in_every_process():
    rng = random.Random(1)
    expressions = [
        f"{rng.randint(1, 50)}+{rng.randint(1, 50)}-{rng.randint(1, 50)}" for _ in range(2000)
    ]
    mine = "".join(str(int(is_held_out(expression))) for expression in expressions)
    code = f"from toy_env.arithmetic import is_held_out; print(''.join(str(int(is_held_out(e))) for e in {expressions!r}))"
    for hash_seed in ("1", "2"):
        other = python("-c", code, PYTHONHASHSEED=hash_seed)
        assert other.stdout.strip() == mine, other.stderr
    assert 0.17 < mine.count("1") / len(mine) < 0.23
    assert [e for e in ("1+1", "2+2", "29+46-36", "50-50", "7+8", "10-3") if is_held_out(e)] == [
        "2+2",
        "10-3",
    ]
    # ... and for good: another hash would let the shipped base model have seen problems that are held out.


def test_arithmetic_needs_no_torch():
    code = "import sys, toy_env.arithmetic; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    assert python("-c", code).returncode == 0


def test_held_out_set_is_fixed_distinct_and_never_trained_on():
    problems = held_out_problems(64)
    assert problems == held_out_problems(64) != held_out_problems(64, seed=1)
    assert Counter(problem.level for problem in problems) == dict.fromkeys(LEVELS, 64)
    assert len({problem.expression for problem in problems}) == 256
    trained = {problem.expression for problem in sample_problems(20_000, LEVELS, random.Random(0))}
    assert not trained & {problem.expression for problem in problems}
    assert held_out_problems(8, levels=[3]) == [p for p in held_out_problems(8) if p.level == 3]
    with pytest.raises(ValueError, match="level 9 does not exist"):
        held_out_problems(1, levels=(9,))


def test_a_level_that_does_not_exist():
    with pytest.raises(ValueError, match=r"level 5 does not exist; choose from 1, 2, 3, 4"):
        sample_problem(5, random.Random(0))


NO_INTEGER = [  # after the last "#", or none without something else beside it
    "39", "", "#", "39#", "#39#", "#--39", "#- 39", "#3 9", "#39 apples", "#39..", "#.39", "#39.0", "#39,5", "#39-0",
    "#78/2", "#3e1", "#0x27", "#3_9", "#1000000000", "#" + "9" * 10_000, "#__import__('os').getpid()", "#39<pad>",
    "#٣٩", "#３９", "#³⁹", "\uff0339", "#39\u00a0", "#\u221239", "#\ud800", "#39\x00", "#\x0039",  # Unicode and NUL
    "#{39}", "#12 or #39 or neither", "#12, 39", "#12 **39**", "#(12)(39)", "#12*39", "#39;", "#39!", "#=39", "#<39>",
    '#"39"', "#39%", "#1,039", "#thirty-nine", "#39\n\n### Explanation\n...", "The answer is 39.", "**39**",
    "<answer>39</answer>",
    r"\boxed{3}9", r"\boxed{39} or \boxed{12} or so", r"\boxed{39", r"\boxed39", r"\boxed{}", r"\boxed{}39",
    r"\boxed{#}39", "\u2212\\boxed{39}", r"-\boxed{-39}", r"\boxed{\text{39}}", r"\boxed{{39}}", r"\boxed{12, 39}",
    r"\boxed{x=39}", r"\boxed{39}}", r"\boxed{39}#", r"#39 \boxed{}",
]  # fmt: skip
ANSWERS = {
    39: [
        "#39", "29+46=75;75-36=39;#39", "#12#39", "#+39", "#039", " # 39 \n", "#\t39\r\n", "#39.", "#39. \n", "\x00#39",
        "#" + "0" * 10_000 + "39", "#39" + " " * 10_000, "#" * 10_000 + "39",
        # as chat models dress it: bold, code, mathematics, a box
        "The value is **#39**.", "# **39**", "**Answer:** #**39**\n", "`#39`", "```\n75-36=39;#39\n```", "#$39$",
        "$#39$.", "#\\(39\\)", r"\boxed{39}", r"Thus it is $\boxed{39}$.", "\\[\n\\boxed{39}\n\\]", r"#\boxed{39}",
        r"\boxed{#39}", r"#12 \boxed{39}", r"\boxed{12}\boxed{39}", r"- \boxed{39}",  # the last is a list
    ],
    12: ["#39#12", r"\boxed{39}#12"],
    -39: ["#-39", "#-0039", r"\boxed{ -39 }", r"-\boxed{39}"],
    0: ["#-0", "#000"],
    999_999_999: ["#999999999"],  # nine digits at most
    None: NO_INTEGER,
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_verifier(answer):
    for completion in ANSWERS[answer]:
        assert extract_answer(completion) == oracle(completion) == answer, completion
        for truth in (39, 0, 12):
            assert reward(Problem("", truth, 1), completion) == float(
                answer is not None and answer == truth
            )


def oracle(completion: str) -> int | None:
    """The verifier's rule again, as a loop over single characters, without re, int or str methods
    that know Unicode."""
    text, position = "", 0
    while position < len(completion):  # \boxed{x} is #x and a space if x has a digit and no brace
        minus = completion[position] in "-\u2212"
        start = end = position + minus + 7
        if completion[position + minus : end] == "\\boxed{":
            digits = 0
            while end < len(completion) and completion[end] not in "{}":
                digits += completion[end] in "0123456789"
                end += 1
            if end < len(completion) and completion[end] == "}" and digits:
                text += "#" + completion[position] * minus + completion[start:end] + " "
                position = end + 1
                continue
        text += completion[position]
        position += 1
    start = None
    for position, character in enumerate(text):
        if character == "#":
            start = position + 1
    if start is None:
        return None
    end, stops = len(text), 1
    while start < end and text[start] in DRESS:
        start += 1
    while end > start and (text[end - 1] in DRESS or (text[end - 1] == "." and stops > 0)):
        end -= 1
        stops -= text[end] == "."
    sign = 1
    if start < end and text[start] in "+-":
        sign = -1 if text[start] == "-" else 1
        start += 1
    if start == end:
        return None
    value, significant = 0, 0
    for position in range(start, end):
        digit = "0123456789".find(text[position])
        if digit < 0:
            return None
        value = 10 * value + digit
        significant += significant > 0 or digit > 0
    return sign * value if significant <= 9 else None


def test_verifier_on_200_000_random_strings():
    """Agrees with the oracle everywhere, so it accepts no wrong answer; it never raises; a third
    are well formed."""
    rng = random.Random(0)
    pieces = [
        *"0123456789",
        *"##+-=;? \n\t.*$`()[]{}",
        "\\boxed{",
        "39}",
        "#39",
        "# 39",
        "39\n",
        "00",
        "e",
        "_",
    ]
    pieces += ["٣", "３", "\x00", "\u00a0", "\u2003"]
    accepted = answered = 0
    for _ in range(200_000):
        completion = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 9)))
        if rng.random() < 0.5:
            before, after = rng.choice(["", " ", "-", "+", "0", "x"]), rng.choice(["", "\n", " a"])
            completion += f"#{before}{rng.randint(0, 120)}{after}"
        truth, expected = rng.randint(0, 99) if rng.random() < 0.9 else 39, oracle(completion)
        assert extract_answer(completion) == expected, completion
        assert reward(Problem("", truth, 1), completion) == (
            1.0 if expected is not None and expected == truth else 0.0
        )
        answered += expected is not None
        accepted += expected == truth
    assert answered > 60_000 and accepted > 500


@pytest.mark.parametrize(
    "unit",
    ["#", "0", "9", " ", "#0", "-", "\x00", "#1 ", "*", ".", "\\boxed{", "\\boxed{1}", "\\boxed{1"],
)
def test_verifier_takes_linear_time(unit):
    assert takes_linear_time(extract_answer, unit)
