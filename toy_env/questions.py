"""A task from a file of questions whose answers are numbers, a row of JSON each.

    {"question": "What is 35 plus 14?", "answer": 49}
    {"question": "How many legs do 7 spiders have?", "answer": "7 x 8 = 56\\n#### 56", "level": 2}

A fifth of the questions, chosen by a hash as in `arithmetic.py`, is held out, or those of a second
file. Plain Python.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from toy_env.arithmetic import is_held_out, is_worked

INSTRUCTION = "Answer the question. End your reply with: The answer is NUMBER."
ROW = '{"question": "What is 35 plus 14?", "answer": 49}'


@dataclass(frozen=True)
class Problem:
    """One question."""

    prompt: str
    answer: Decimal
    level: int
    reply: str  # how the model's reply begins


_NUMBER = re.compile(
    r"([+-]?)\\?\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)", re.ASCII
)
# what stands right before an answer
_BEFORE = re.compile(r"#|=|\banswer:|\b(?:is|are|equals|equal to)\b:?", re.IGNORECASE)
_BOXED = re.compile(r"([-\u2212]?)\\boxed\{([^{}]*)\}")
_DRESS = " \t\r\n*_`\"'$\\()[]"  # white space, quotes, and marks of bold type, code and mathematics


def read_number(text: str) -> Decimal | None:
    """The number that a text consists of, such as 1234.5 for "$1,234.50.", or None."""
    bare = text.strip(_DRESS).removesuffix(".").rstrip(_DRESS).replace("\u2212", "-")
    match = _NUMBER.fullmatch(bare)
    return Decimal(match[1] + match[2].replace(",", "")) if match else None


def extract_answer(completion: str) -> Decimal | None:
    """The number that a completion ends in, or None.

    It must stand right after the last "#", "=", "is", "are", "equals", "equal to" or "answer:", or
    be the whole completion; \\boxed{18} is read as #18. Around it may stand white space and marks
    such as * and $, and at the end one full stop. So "is 18 apples", "is 18 or 19", "= 18%" and
    "17, 18" hold no answer. Of "#17 ... #18" the last counts. Linear in the length of the
    completion; evaluates nothing; raises nothing.
    """
    return read_number(_BEFORE.split(_BOXED.sub(r"#\1\2 ", completion))[-1])


def reward(problem: Problem, completion: str) -> float:
    """The verifiable reward: 1.0 if the completion's answer is the right one, else 0.0."""
    return float(extract_answer(completion) == Decimal(problem.answer))


def read_file(path: str, reply: str) -> list[Problem]:
    """The problems of a file, each once. Raises SystemExit that names the line of a bad row."""
    try:
        lines = Path(path).expanduser().read_text("utf-8-sig").rstrip().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"give --questions FILE.jsonl, in UTF-8 ({path}: {error})") from None
    problems = {}
    for number, line in enumerate(lines, 1):
        try:  # numbers as they are written: a float would round them
            row = json.loads(line, parse_int=str, parse_float=str)
            question, answer = row["question"].strip(), extract_answer(str(row["answer"]))
            problem = Problem(question, answer, int(row.get("level", 1)), reply)
        except (ValueError, LookupError, TypeError, AttributeError):
            answer = None
        if answer is None:
            raise SystemExit(
                f"{path}, line {number}: in place of {line[:60]} write {ROW}, where the answer is "
                'a number or a text that ends in one, "#### 49", and "level" may be an integer'
            )
        if problems.setdefault(question, problem) != problem:
            raise SystemExit(f"{path}, line {number}: an earlier line answers it differently")
    return list(problems.values())


class Questions:
    """The task of a file. It has what the module of a task has."""

    __name__ = "questions"
    extract_answer, reward, is_worked = map(staticmethod, (extract_answer, reward, is_worked))
    NO_ANSWER = "no single number after #, = or 'is' at its end"  # the verdict on such a completion

    def __init__(self, questions: str, held_out: str, instruction: str, reply: str) -> None:
        problems = read_file(questions, reply)
        self.held_out = [one for one in problems if is_held_out(one.prompt)]
        if held_out:
            self.held_out = read_file(held_out, reply)
        prompts = {one.prompt for one in self.held_out}
        self.training = [one for one in problems if one.prompt not in prompts]
        counts = len(problems), len(self.training), len(self.held_out)
        print("{} different questions: {} to train on, {} held out".format(*counts))
        if 0 in counts:
            raise SystemExit("add questions, or give another file by --held_out")
        random.Random(0).shuffle(self.held_out)
        self.INSTRUCTION = instruction or INSTRUCTION
        self.LEVELS = sorted({one.level for one in self.held_out})

    def sample_problems(self, n: int, levels: Sequence[int], rng: random.Random) -> list[Problem]:
        """n training problems, drawn uniformly from those of these levels; no levels: from all."""
        return rng.choices([one for one in self.training if not levels or one.level in levels], k=n)

    def held_out_problems(self, per_level: int, levels: Sequence[int] = ()) -> list[Problem]:
        """The evaluation set: `per_level` held-out problems of each level, or all that it has."""
        chosen = []
        for level in levels or self.LEVELS:
            chosen += [one for one in self.held_out if one.level == level][:per_level]
        return chosen
