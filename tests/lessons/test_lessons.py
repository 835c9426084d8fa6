"""The lessons: each source runs, each check accepts the solution and names the usual mistakes, and
each notebook is built from its source.

Broken on purpose: a notebook that is not built from its source, a check that passes a wrong answer.
"""

import re
from importlib import import_module

import nbformat
import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from lessons.workshop import build, notebook, sources
from lessons.workshop.companions import lesson_04

SOURCES = sources.find_sources()
SHORT = "04_kl"
ALL_BUT_ONE_SLOW = [
    pytest.param(s, marks=pytest.mark.slow if s.stem != SHORT else (), id=s.stem) for s in SOURCES
]
REBUILD = "run python lessons/workshop/build.py"


@pytest.fixture(params=SOURCES, ids=lambda source: source.stem)
def source(request):
    return request.param


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The source of a repository's only lesson, not yet written."""
    monkeypatch.setattr(sources, "LESSONS", tmp_path)
    (tmp_path / "workshop/src").mkdir(parents=True)
    return tmp_path / "workshop/src/01_x.py"


def checks_of(source) -> dict:
    return import_module(f"lessons.workshop.companions.lesson_{source.name[:2]}").CHECKS


# ---------------------------------------------------------------------- exercises


@pytest.mark.parametrize("source", ALL_BUT_ONE_SLOW)
def test_a_lesson_runs_and_its_solutions_are_right(source, capsys):
    """Run it once as a reader who answers nothing; then each check with its solution."""
    cells = sources.read_cells(source)
    kinds = ("code", "fold", "text", "exercise", "check")
    namespace = sources.run_cells([cell for cell in cells if cell.kind in kinds], source)
    verdicts = re.findall("^[✓✗–] .*$", capsys.readouterr().out, flags=re.MULTILINE)
    bugs = ["bug" in exercise for exercise in checks_of(source).values()]
    assert verdicts == ["– the bug is still there" if bug else "– not attempted" for bug in bugs]
    checks, solutions = (
        [cell.text for cell in cells if cell.kind == kind] for kind in ("check", "solution")
    )
    for check, solution in zip(checks, solutions, strict=True):
        exec(f"{solution}\n{check}", dict(namespace))
        assert capsys.readouterr().out == "✓ right\n", check


def test_every_mistake_gets_its_message(source):
    numbers = re.findall(r'^check\("(\S+)", ', source.read_text("utf-8"), flags=re.MULTILINE)
    assert numbers == list(checks_of(source))
    for number, exercise in checks_of(source).items():
        assert exercise["mistakes"], number
        for message, mistake in exercise["mistakes"].items():
            assert notebook.verdict(mistake, **exercise) == f"✗ not yet: {message}"
        if "bug" in exercise:
            assert notebook.verdict(exercise["bug"], **exercise) == "– the bug is still there"


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda x: x + 0, "✓ right"),
        (lambda x: ..., "– not attempted"),
        (lambda x: -x, "✗ not yet: the sign is turned"),
        (lambda x: x.flip(-1), "✗ not yet: the order is reversed"),
        (lambda x: x / 4, "✗ not yet: every value is 0.25 times the right one"),
        (lambda x: x - 2, "✗ not yet: every value is off by -2"),
        (lambda x: 1 - x, "✗ not yet: each is 1 minus the right value"),
        (lambda x: x * torch.tensor([1, 1.005, 1, 1]), "✗ not yet: nearly right, to 1 %"),
        (
            lambda x: x + (x > 5),
            "✗ not yet: right at 1 of 2 inputs, but 8 in place (1,) (2 of 4 are wrong)",
        ),
        (lambda x: x.zero_(), "✗ not yet: 0 in place (1,)"),  # the arguments are copies
        (lambda x: x[:2], "✗ not yet: a value of shape (2,) where one of shape (4,) is wanted"),
        (
            lambda x: x / (1 // int(x[0] < 5)),
            "✗ not yet: your code raised ZeroDivisionError: integer division or modulo by zero "
            "for x = [ 5., 7., 6., -9.]",
        ),
    ],
)
def test_a_check_names_the_pattern_or_one_wrong_place_and_never_the_right_value(answer, said):
    inputs = [{"x": torch.tensor([0.0, 1.5, 4, 4])}, {"x": torch.tensor([5.0, 7, 6, -9])}]
    assert notebook.verdict(answer, lambda x: x, inputs).startswith(said)


def test_a_check_of_a_word_of_no_number_and_of_a_row_of_a_table():
    assert notebook.verdict("Up ", "up") == "✓ right"
    assert notebook.verdict(float("nan"), 1.0) == "✗ not yet: nan is not right"
    table = {"x": np.arange(40.0).reshape(20, 2), "n": 20}
    wrong = notebook.verdict(lambda x, n: x[:, 0] * (x[:, 0] != 26), lambda x, n: x[:, 0], [table])
    assert wrong == "✗ not yet: 0 in place (13,) is not right for x[13] = [26., 27.], n = 20"
    verdicts = [{"x": np.array([True, True, False])}]  # 0 and 1 say nothing about an order
    assert "in place (0,)" in notebook.verdict(lambda x: x[::-1], lambda x: x, verdicts)


def test_an_answer_whose_new_version_does_not_run_is_not_judged(monkeypatch, capsys):
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    monkeypatch.setattr(notebook, "get_ipython", lambda: shell)
    judged, failed = "✗ not yet", "✗ the cell that you ran before"
    for cell, verdict in (("a = 2", judged), ("a = = 3", failed), ("a = 3", judged)):
        shell.run_cell(f"{cell}\n")
        capsys.readouterr()
        notebook.check("0.1", lambda z, R, b, rate: 2)
        assert capsys.readouterr().out.startswith(verdict)


# ---------------------------------------------------------------------- sources and notebooks


def test_every_notebook_is_built_from_its_source(source):
    assert build.is_built(source), REBUILD


def test_quoted_code_stands_in_the_repository(source):
    """A lesson quotes functions and diffs as they were when it was built."""
    for cell in nbformat.read(build.notebook_path(source), as_version=4).cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown", "")
            files = re.findall(r"^(?:`|--- |\+\+\+ )([\w/]+\.py)", text, re.MULTILINE)
            code = "\n".join((sources.LESSONS.parent / file).read_text("utf-8") for file in files)
            head, margin = (3, 1) if text.startswith("```diff") else (2, 0)
            for line in text.splitlines()[head:-1] if files else []:
                assert line.startswith("@@") or line[margin:] in code.splitlines(), REBUILD


def test_lessons_are_listed_in_reading_order():
    index = (sources.LESSONS / "README.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\d+ · .*?)\]\((\w+)\.ipynb\)", index, flags=re.MULTILINE)
    order = sources.reading_order()
    assert listed == [(sources.heading(source), source.stem) for source in order]


@pytest.mark.slow
def test_numbers_in_a_text_come_from_the_code_and_a_changed_source_is_noticed(scratch):
    source = (
        "# %% [markdown]\n# # 1 · X\n\n# %%\na = 1 / 3\n\n"
        "# %% [text]\n# A third is {=a:.2f}, $\\frac{a}{b}$.\n\n# %%\na\n\n# %% [hint]\n# think\n"
    )
    scratch.write_text(source, "utf-8")
    path = build.notebook_path(scratch)
    build.main(build.Config())
    first = path.read_bytes()
    build.main(build.Config())
    assert path.read_bytes() == first
    cells = nbformat.reads(first.decode(), 4).cells
    assert cells[2].source == "A third is 0.33, $\\frac{a}{b}$."
    assert "<summary>Hint</summary>" in cells[4].source
    build.main(build.Config(check=True))
    for before, after in (("third is", "third of 1 is"), ("1 / 3", "1 / 4")):
        scratch.write_text(source.replace(before, after), "utf-8")
        with pytest.raises(SystemExit, match="01_x"):
            build.main(build.Config(check=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# %%\nraise ValueError('no')", "ValueError"),
        ("# %%\nimport warnings\nwarnings.warn('look')", "01_x leaves a warning"),
        ("# %% [text]\n# {=unknown}", "NameError"),
    ],
)
def test_a_lesson_that_fails_leaves_no_notebook(text, message, scratch):
    scratch.write_text(text + "\n", "utf-8")
    with pytest.raises((SystemExit, CellExecutionError), match=message):
        build.main(build.Config())
    assert not build.notebook_path(scratch).exists()


# ---------------------------------------------------------------------- mathematics of the texts


def test_k3_times_the_ratio_is_the_reverse_kl_of_the_next_token_after_prefixes_of_the_old_policy():
    """Two tokens, the policy and all prefixes moved: autograd through the loss against autograd
    through the sums."""
    new = (lesson_04.theta + torch.tensor([[0.3, -0.5], [0.2, 0.9], [-0.6, 0.1]])).requires_grad_()
    old, ref = lesson_04.theta, lesson_04.other_ref
    logps, old_logps, ref_logps = map(lesson_04.token_logps, (new, old, ref))
    loss = ((logps - old_logps).exp() * lesson_04.k3(logps, ref_logps)).sum(dim=1).mean()
    next_token = (new.softmax(dim=1) * (new.log_softmax(dim=1) - ref)).sum(dim=1)  # three KLs
    truth = next_token[0] + old[0].softmax(dim=0) @ next_token[1:]
    torch.testing.assert_close(loss, truth)
    torch.testing.assert_close(*(torch.autograd.grad(value, new)[0] for value in (loss, truth)))
