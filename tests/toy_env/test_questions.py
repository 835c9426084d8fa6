"""A file of questions as a task: its verifier on what a small model really wrote, its rows, and a
run on it."""

import json
import random
from decimal import Decimal
from pathlib import Path

import pytest
from conftest import ROOT, build_tiny_model, takes_linear_time

from algorithms import grpo
from toy_env import evaluate
from toy_env.arithmetic import is_held_out
from toy_env.questions import Problem, extract_answer, reward
from toy_env.tasks import TaskConfig, load_task

EXAMPLE = str(ROOT / "toy_env/questions.jsonl")


# The verifier


REPLIES = Path(__file__).with_name("replies.jsonl").read_text("utf-8").splitlines()


def test_the_verifier_reads_what_a_human_reads():
    """Sixty replies of SmolLM2-135M-Instruct, marked by hand. Where the verifier must not read the
    number that a human sees, "read" says so: a unit or a remark stands behind it ("30 cents" of a
    price in dollars, "29/25"), it is a word, or the reply goes on to another answer.

    Seen to fail: without the refusal of two answers; with text allowed behind the number."""
    rows = [json.loads(line, parse_float=Decimal) for line in REPLIES]
    for row in rows:
        assert extract_answer(row["reply"]) == row.get("read", row["human"]), row
    assert len(rows) == 60


NUMBERS = {
    "18": [
        "18", "#18", "#018.", "**#18**.", r"\boxed{18}", r"So $x = \boxed{18.0}$.", "It is 18.",
        "The answer is 18.", "Answer: $18", "9 + 9 = 18", "#17+1=18", "#18\n", "answer is: +18",
        "#18, because ... The answer is 18", "### 1. First\n9 + 9 = 18",
    ],
    "-1234.5": ["#-1,234.50", "-$1234.5", "is \u22121,234.5", r"-\boxed{1,234.5}"],
    "0.3": ["#.3", "0.30", "= 0.3."],
    "-0": ["#0", "#-0.0"],
    "1" + "0" * 400 + ".25": ["#1" + "0" * 400 + ".25"],
    None: [
        "", "#", "18 or 19", "is 18 or 19", "#17 or #18", "17, 18", "#17, #18", "#17\n#18",
        "The answer is 17.\nSo 9 + 9 = 18", r"\boxed{17} and \boxed{18}", r"\boxed{18 or 19}",
        "#18 apples", "18%", "is 18 million", "is not 18", "about 18", "eighteen", "is 18?", "#18#",
        "#1 8", "#1,8", "#12,34", "#1234,567", "#18/2", "#2*9", "#1e2", "#18..", "#NaN",
        "#٣", "#__import__('os')",
    ],
}  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_compared_exactly(number):
    """Seen to fail: with floats."""
    for text in NUMBERS[number]:
        answer = extract_answer(text)
        assert answer == (None if number is None else Decimal(number)), text
    if number:
        near = number + ("1" if "." in number else ".1")
        for text in (number, near):
            problem = Problem("?", Decimal(number), 1, "")
            assert reward(problem, f"#{text}") == (text == number)


@pytest.mark.parametrize("unit", ["1", "1,111", "is ", "#1\n", " . ", "\\boxed{", "answer is 1\n"])
def test_the_verifier_takes_linear_time(unit):
    assert takes_linear_time(extract_answer, unit)


# The file


@pytest.fixture
def write(tmp_path):
    """write(name, rows) makes a file of rows, texts or data for JSON, and returns its path."""

    def write_rows(name: str, rows: list, encoding: str = "utf-8") -> str:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding)
        return str(tmp_path / name)

    return write_rows


SUMS = [
    {"question": f"What is {n} plus 1?", "answer": n + 1, "level": 1 + n % 2} for n in range(60)
]


def load(questions: str, **settings):
    return load_task(TaskConfig("questions", questions, **settings))


def test_the_example_is_a_task(capsys):
    task = load(EXAMPLE)
    held_out = task.held_out_problems(64)
    drawn = {problem.prompt: problem for problem in task.sample_problems(500, (), random.Random(0))}
    assert not set(drawn) & {problem.prompt for problem in held_out}
    everything = drawn | {problem.prompt: problem for problem in held_out}
    assert len(everything) == 20 and "20 questions" in capsys.readouterr().out
    answers = {prompt.split("?")[0]: str(one.answer) for prompt, one in everything.items()}
    assert answers["What is 1,500 plus 2,750"] == "4250" and "1.20" in answers.values()
    gsm8k = next(one for prompt, one in everything.items() if prompt.startswith("Maria"))
    assert gsm8k.answer == 210 and gsm8k.level == 2


def test_what_is_held_out(write, capsys):
    """A fifth, chosen by the question alone, so that a file may grow; or the questions of a second
    file, which are then not trained on. A byte order mark and a question that is there again change
    nothing. Levels may be of unequal size.

    Seen to fail: read as plain UTF-8; with held-out questions trained on; without the reply."""
    task = load(write("a.jsonl", SUMS))
    assert [one.level for one in task.held_out_problems(1)] == [1, 2]
    chosen = {problem.prompt for problem in task.held_out_problems(64)}
    assert chosen == {row["question"] for row in SUMS if is_held_out(row["question"])}
    marked = load(write("b.jsonl", SUMS + SUMS[:9], "utf-8-sig"))
    assert marked.held_out_problems(64) == task.held_out_problems(64)
    assert {one.level for one in task.sample_problems(99, (2,), random.Random(0))} == {2}

    ours, theirs = (
        write("c.jsonl", SUMS[:50]),
        write("d.jsonl", [*SUMS[45:], SUMS[1] | {"level": 7}]),
    )
    task = load(ours, held_out=theirs, instruction="Reply with the sum.", reply="It is")
    assert "50 questions: 44 to train on, 16 held out" in capsys.readouterr().out
    assert len(task.held_out_problems(64)) == 16 and task.INSTRUCTION == "Reply with the sum."
    drawn = task.sample_problems(999, (), random.Random(0))
    assert len({one.prompt for one in drawn}) == 44 and {one.reply for one in drawn} == {"It is"}
    with pytest.raises(SystemExit, match="level"):
        task.sample_problems(1, (7,), random.Random(0))


BAD_ROWS = [
    "", "What is 1 plus 2?,3", "[1]", {"question": "?"}, {"answer": 3},
    {"question": ["?"], "answer": 3},
    {"question": "?", "answer": "2 or 3"}, {"question": "?", "answer": None},
    {"question": "?", "answer": "about 1/2"}, {"question": "?", "answer": 3, "level": "hard"},
    {"question": SUMS[0]["question"], "answer": 5},
]  # fmt: skip


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_ends_in_a_line_that_names_it(row, write):
    """Seen to fail: with lines counted from 0."""
    with pytest.raises(SystemExit, match=r"bad.jsonl, line 3: [^\n]+$"):
        load(write("bad.jsonl", [*SUMS[:2], row, *SUMS[2:]]))


def test_settings_that_do_not_fit(write):
    few = write("few.jsonl", [row for row in SUMS if not is_held_out(row["question"])])
    for settings, message in (
        (TaskConfig("questions"), "--questions FILE"),
        (TaskConfig("arithmetic", EXAMPLE), "--task questions"),
        (TaskConfig("expressions", reply="#"), "--task questions"),
        (TaskConfig("questions", "nowhere.jsonl"), "nowhere.jsonl"),
        (TaskConfig("questions", few), "0 held out"),
        (TaskConfig("questions", few, held_out=few), "0 to train on"),
    ):
        with pytest.raises(SystemExit, match=message):
            load_task(settings)


# A run


def test_a_run_on_a_file(tmp_path, letters, train, monkeypatch, capsys):
    """With the defaults, from the shipped example. The model's reply begins as asked; config.json
    names the file as one finds it from anywhere; the samples say what was read.

    Seen to fail: with the path as it was typed."""
    build_tiny_model(len(letters)).save_pretrained(tmp_path / "model")
    letters.save_pretrained(tmp_path / "model")
    (tmp_path / "mine.jsonl").write_text(Path(EXAMPLE).read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    settings = {"task": "questions", "questions": "mine.jsonl", "reply": "It is", "model": "model"}
    train(grpo, **settings, eval_problems=64)
    saved = json.loads(Path("run/config.json").read_text("utf-8"))
    assert saved["questions"] == str(tmp_path / "mine.jsonl")
    results = json.loads(Path("run/results.json").read_text("utf-8"))["before"]
    assert results["problems"] == 3
    assert "wrong: no single number" in results["completions"][0]["verdict"]
    evaluate.main(evaluate.Config(**settings, device="cpu", samples=2, max_new_tokens=8))
    assert "majority@k" in capsys.readouterr().out


def test_the_base_model_reads_no_questions(train):
    """Seen to fail, with the tokenizer's own traceback, unless `check_tokenizer` looks at it."""
    with pytest.raises(SystemExit, match="--model"):
        train(grpo, task="questions", questions=EXAMPLE)
    with pytest.raises(SystemExit, match="letters"):
        train(grpo, task="questions", questions=EXAMPLE, model=str(ROOT / "toy_env/base_model"))
