"""The task: problems, the split, and a verifier that no string can fool, crash or slow down."""

import random
import re
import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
        f"{a}{op}{b}" for a in range(1, 51) for b in range(1, 51) for op in "+-" if 0 <= a + int(op + str(b)) <= 99
    ]
    training = {expression for expression in every if not is_held_out(expression)}
    rng = random.Random(0)
    drawn = Counter(sample_problem(1, rng).expression for _ in range(40 * len(training)))
    assert set(drawn) == training
    chi_square = sum((count - 40) ** 2 / 40 for count in drawn.values())
    assert abs(chi_square - len(training)) < 5 * (2 * len(training)) ** 0.5  # five standard deviations


def test_the_split_is_the_same_in_every_process():
    rng = random.Random(1)
    expressions = [f"{rng.randint(1, 50)}+{rng.randint(1, 50)}-{rng.randint(1, 50)}" for _ in range(2000)]
    mine = "".join(str(int(is_held_out(expression))) for expression in expressions)
    code = (
        f"from toy_env.arithmetic import is_held_out; print(''.join(str(int(is_held_out(e))) for e in {expressions!r}))"
    )
    for hash_seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True
        )
        assert other.stdout.strip() == mine, other.stderr
    assert 0.17 < mine.count("1") / len(mine) < 0.23
    assert [e for e in ("1+1", "2+2", "29+46-36", "50-50", "7+8", "10-3") if is_held_out(e)] == ["2+2", "10-3"]
    # ... and for good: another hash would let the shipped base model have seen problems that are held out.


def test_arithmetic_needs_no_torch():
    code = "import sys, toy_env.arithmetic; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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


def test_same_seed_same_problems():
    assert sample_problems(50, [1, 3], random.Random("0/7")) == sample_problems(50, [1, 3], random.Random("0/7"))


def test_a_level_that_does_not_exist():
    with pytest.raises(ValueError, match=r"level 5 does not exist; choose from 1, 2, 3, 4"):
        sample_problem(5, random.Random(0))


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#39", 39),
        ("29+46=75;75-36=39;#39", 39),
        ("39", None),  # no "#"
        ("", None),
        ("#", None),
        ("39#", None),
        ("#12#39", 39),  # several: the last one counts
        ("#39#12", 12),
        ("#39#", None),  # ... even when it holds no integer
        ("#-39", -39),  # sign
        ("#+39", 39),
        ("#-0", 0),
        ("#--39", None),
        ("#- 39", None),
        ("#039", 39),  # leading zeros
        ("#-0039", -39),
        ("#000", 0),
        (" # 39 \n", 39),  # white space around the integer
        ("#\t39\r\n", 39),
        ("#3 9", None),  # ... but not inside it
        ("#39 apples", None),  # anything else after the integer
        ("#39.", 39),  # one full stop
        ("#39. \n", 39),
        ("#39..", None),
        ("#.39", None),
        ("#39.0", None),
        ("#39,5", None),
        ("#39-0", None),
        ("#78/2", None),
        ("#3e1", None),
        ("#0x27", None),
        ("#3_9", None),
        ("#٣٩", None),  # Unicode digits that int() would read
        ("#３９", None),
        ("#³⁹", None),
        ("\uff03" + "39", None),  # a full-width "#" is no "#"
        ("#39\u00a0", None),  # a no-break space is no space here
        ("#\u221239", None),  # nor is a minus sign a hyphen
        ("#39\x00", None),  # NUL
        ("#\x0039", None),
        ("\x00#39", 39),
        ("#39<pad>", None),
        ("#999999999", 999_999_999),  # nine digits at most
        ("#1000000000", None),
        ("#" + "9" * 10_000, None),
        ("#" + "0" * 10_000 + "39", 39),
        ("#39" + " " * 10_000, 39),
        ("#" * 10_000 + "39", 39),
        ("#__import__('os').getpid()", None),
        ("#\ud800", None),  # a lone surrogate
        # The dress that chat models give an answer: bold, code, mathematics, a box
        ("The value is **#39**.", 39),
        ("# **39**", 39),
        ("**Answer:** #**39**\n", 39),
        ("`#39`", 39),
        ("```\n29+46=75;75-36=39;#39\n```", 39),
        ("#$39$", 39),
        ("$#39$.", 39),
        ("#\\(39\\)", 39),
        (r"\boxed{39}", 39),
        (r"Thus the value is $\boxed{39}$.", 39),
        ("\\[\n\\boxed{39}\n\\]", 39),
        (r"#\boxed{39}", 39),
        (r"\boxed{ -39 }", -39),
        (r"\boxed{#39}", 39),
        # ... and what opens no hack: one integer and no other, the last that is handed in, and nothing behind it
        (r"\boxed{39}#12", 12),
        (r"#12 \boxed{39}", 39),
        (r"\boxed{12}\boxed{39}", 39),
        (r"\boxed{3}9", None),
        (r"\boxed{39} or \boxed{12} or so", None),
        (r"\boxed{39", None),
        (r"\boxed39", None),
        (r"\boxed{}", None),
        (r"\boxed{}39", None),
        (r"\boxed{#}39", None),
        (r"-\boxed{39}", -39),
        ("\u2212\\boxed{39}", None),
        (r"-\boxed{-39}", None),
        (r"- \boxed{39}", 39),  # a list
        (r"\boxed{\text{39}}", None),
        (r"\boxed{{39}}", None),
        (r"\boxed{12, 39}", None),
        (r"\boxed{x=39}", None),
        (r"\boxed{39}}", None),
        (r"\boxed{39}#", None),
        (r"#39 \boxed{}", None),
        ("#{39}", None),
        ("#12 or #39 or neither", None),
        ("#12, 39", None),
        ("#12 **39**", None),
        ("#(12)(39)", None),
        ("#12*39", None),
        ("#39;", None),
        ("#39!", None),
        ("#39?", None),
        ("#=39", None),
        ("#<39>", None),
        ('#"39"', None),
        ("#39%", None),
        ("#1,039", None),  # no separators: no answer is as large
        ("#thirty-nine", None),
        ("#39\n\n### Explanation\n...", None),
        ("The answer is 39.", None),
        ("**39**", None),
        ("<answer>39</answer>", None),
    ],
)
def test_verifier(completion, answer):
    assert extract_answer(completion) == answer
    for truth in (39, 0, 12):
        assert reward(Problem("", truth, 1), completion) == float(answer is not None and answer == truth)


def oracle(completion: str) -> int | None:
    """The verifier's rule again, as a loop over single characters, without re, int or str methods that know Unicode."""
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
    """Agrees with the oracle everywhere, so it accepts no wrong answer; it never raises; a third are well formed."""
    rng = random.Random(0)
    pieces = [
        *"0123456789",
        *"##+-=;? \n\t.*$`()[]{}",
        "\\boxed{",
        "39}",
        "٣",
        "３",
        "\x00",
        "\u00a0",
        "\u2003",
        "e",
        "_",
        "#39",
        "# 39",
        "39\n",
        "00",
    ]
    accepted = answered = 0
    for _ in range(200_000):
        completion = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 9)))
        if rng.random() < 0.5:
            completion += (
                "#"
                + rng.choice(["", " ", "-", "+", "0", "x"])
                + str(rng.randint(0, 120))
                + rng.choice(["", "\n", " a"])
            )
        truth, expected = rng.randint(0, 99) if rng.random() < 0.9 else 39, oracle(completion)
        assert extract_answer(completion) == expected, completion
        assert reward(Problem("", truth, 1), completion) == (1.0 if expected is not None and expected == truth else 0.0)
        answered += expected is not None
        accepted += expected == truth
    assert answered > 60_000 and accepted > 500


# Properties of the verifier, each on 25,000 texts that hypothesis makes up: 100,000 in all.
property_of_any_text = settings(
    max_examples=25_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
AROUND = st.text(DRESS, max_size=3)
NEARLY = st.text("0123456789+- ", max_size=3)
OTHER = st.characters(categories=["Nd", "No", "Zs"], exclude_characters="0123456789 ") | st.characters(
    exclude_characters=f"0123456789+-#.{DRESS}"
)  # digits and spaces of other scripts above all
BOXES = st.lists(st.sampled_from([r"\boxed{", "}", "#", "39", " ", ".", "$", "-", "\u2212"]), max_size=9).map("".join)
TAIL = st.text().filter(lambda text: "#" not in text and "\\boxed{" not in text)


@pytest.mark.slow
@property_of_any_text
@given(text=st.text() | st.text("0123456789#+-= \n\u0663\uff13.e_*$(]}") | BOXES, truth=st.integers(-200, 200))
def test_any_text_is_read_as_the_oracle_reads_it(text, truth):
    assert extract_answer(text) == oracle(text)
    assert reward(Problem("", truth, 1), text) == float(oracle(text) == truth)


@pytest.mark.slow
@property_of_any_text
@given(
    before=st.text(), left=AROUND, sign=st.sampled_from(["", "+", "-"]), zeros=st.text("0", max_size=9),
    n=st.integers(0, 999_999_999), right=AROUND, stop=st.sampled_from(["", "."]),
)  # fmt: skip
def test_every_integer_of_nine_digits_is_read_after_any_text(before, left, sign, zeros, n, right, stop):
    assert extract_answer(f"{before}#{left}{sign}{zeros}{n}{stop}{right}") == (-n if sign == "-" else n)


@pytest.mark.slow
@property_of_any_text
@given(before=st.text(), one=NEARLY, other=OTHER, two=NEARLY)
def test_no_text_with_another_character_is_an_answer(before, one, other, two):
    assert extract_answer(f"{before}#{one}{other}{two}") is None
    assert reward(Problem("", 0, 1), f"{before}#{one}{other}{two}") == 0.0


@pytest.mark.slow
@property_of_any_text
@given(before=st.text(), tail=TAIL | st.text("0123456789+- ", max_size=4))
def test_only_what_follows_the_last_sign_counts(before, tail):
    assert extract_answer(f"{before}#{tail}") == extract_answer(f"#{tail}")
    assert extract_answer(before.replace("#", "").replace("\\boxed{", "") + tail) is None


@pytest.mark.parametrize(
    "unit", ["#", "0", "9", " ", "#0", "-", "\x00", "#1 ", "*", ".", "\\boxed{", "\\boxed{1}", "\\boxed{1"]
)
def test_verifier_takes_linear_time(unit):
    def seconds(n: int) -> float:
        texts = [f"#{unit * n}", f"#{unit * n}39", f"#{unit * n}x"]
        times = []
        for _ in range(5):
            start = time.process_time()
            for text in texts:
                extract_answer(text)
            times.append(time.process_time() - start)
        return min(times)

    # 20 times the length; quadratic would be 400 times. Short enough for the caches, whose sizes are not the subject
    assert seconds(100_000) < 60 * seconds(5_000)
