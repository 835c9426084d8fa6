"""A file of questions as a task: its verifier on what a small model really wrote, its rows, and a
run on it."""

import json
import random
import shutil
from decimal import Decimal
from pathlib import Path

import pytest
from conftest import ROOT, build_tiny_model

from algorithms import grpo
from toy_env.arithmetic import is_held_out
from toy_env.questions import Problem, extract_answer, reward
from toy_env.tasks import TaskConfig, load_task

EXAMPLE, FOLDER = str(ROOT / "toy_env/questions.jsonl"), Path(__file__).parent


# The verifier


def test_the_verifier_reads_what_a_human_reads():
    """Sixty replies of SmolLM2-135M-Instruct, marked by hand. Where the verifier must not read the
    number that a human sees, "read" says so: a unit or a remark stands behind it ("30 cents" of a
    price in dollars, "29/25"), it is a word, or the reply goes on to another answer, which counts.

    Seen to fail: with text allowed behind the number."""
    lines = (FOLDER / "replies.jsonl").read_text("utf-8").splitlines()
    for row in (json.loads(line, parse_float=Decimal) for line in lines):
        assert extract_answer(row["reply"]) == row.get("read", row["human"]), row
    assert len(lines) == 60


def test_numbers_are_compared_exactly():
    """Seen to fail: with floats; with text allowed behind the number."""
    for line in (FOLDER / "numbers.txt").read_text("utf-8").splitlines():
        number, _, text = line.partition(": ")
        assert extract_answer(text) == (None if number == "none" else Decimal(number)), line
    problem = Problem("?", Decimal("0.3"), 1, "")
    assert [reward(problem, text) for text in ("#0.30", f"#{0.1 + 0.2}")] == [1, 0]


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


def test_what_is_held_out(write, capsys):
    """A fifth, chosen by the question alone, so that a file may grow; or the questions of a second
    file, which are then not trained on. A byte order mark and a question that is there again change
    nothing. Levels may be of unequal size.

    Seen to fail: read as plain UTF-8; with held-out questions trained on; without the reply; with
    all questions of a level."""
    task = load(write("a.jsonl", SUMS))
    assert [one.level for one in task.held_out_problems(1)] == [1, 2]
    chosen = {problem.prompt for problem in task.held_out_problems(64)}
    assert chosen == {row["question"] for row in SUMS if is_held_out(row["question"])}
    marked = load(write("b.jsonl", SUMS + SUMS[:9], "utf-8-sig"))
    assert marked.held_out_problems(64) == task.held_out_problems(64)
    assert {one.level for one in task.sample_problems(99, (2,), random.Random(0))} == {2}

    ours, theirs = write("c.jsonl", SUMS[:50]), write("d.jsonl", SUMS[45:])
    task = load(ours, held_out=theirs, reply="It is")
    assert "50 different questions: 45 to train on, 15 held out" in capsys.readouterr().out
    drawn = task.sample_problems(999, (), random.Random(0))
    assert len({one.prompt for one in drawn}) == 45 and {one.reply for one in drawn} == {"It is"}


BAD_ROWS = """
What is 1 plus 2?,3
[1]
{"question": "?"}
{"answer": 3}
{"question": ["?"], "answer": 3}
{"question": "?", "answer": null}
{"question": "?", "answer": "2 or 3"}
{"question": "?", "answer": 3, "level": "hard"}
{"question": "What is 0 plus 1?", "answer": 5}"""


@pytest.mark.parametrize("row", BAD_ROWS.split("\n"))
def test_a_bad_row_ends_in_a_line_that_names_it(row, write):
    """Seen to fail: with lines counted from 0; with two answers to a question allowed."""
    with pytest.raises(SystemExit, match=r"bad.jsonl, line 3: [^\n]+$"):
        load(write("bad.jsonl", [*SUMS[:2], row, *SUMS[2:]]))


def test_nothing_to_hold_out_or_to_train_on(write):
    one = write("one.jsonl", SUMS[:1])
    for held_out in ("", one):
        with pytest.raises(SystemExit, match="--held_out"):
            load(one, held_out=held_out)


# A run


def test_a_run_on_a_file(tmp_path, letters, train, monkeypatch):
    """From the shipped example. The samples say why nothing was read."""
    build_tiny_model(len(letters)).save_pretrained(tmp_path / "model")
    letters.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, "mine.jsonl")
    train(grpo, task="questions", questions="mine.jsonl", model="model", eval_problems=64)
    results = json.loads(Path("run/results.json").read_text("utf-8"))
    assert results["before"]["problems"] == 3
    assert "wrong: no single number" in results["before"]["completions"][0]["verdict"]


def test_the_base_model_reads_no_questions(train):
    """Seen to fail, with the tokenizer's own traceback, unless `check_tokenizer` looks at it."""
    with pytest.raises(SystemExit, match="--model"):
        train(grpo, task="questions", questions=EXAMPLE)
    with pytest.raises(SystemExit, match="letters"):
        train(grpo, task="questions", questions=EXAMPLE, model=str(ROOT / "toy_env/base_model"))
