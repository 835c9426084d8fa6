"""The lessons: each source runs, each check accepts the solution and names the usual mistakes, and
each notebook is built from its source.

Broken on purpose: a notebook that is not built from its source, a check that passes a wrong answer.
"""

import math
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
from lessons.workshop.companions import lesson_02, lesson_04

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
def test_a_lesson_runs_and_its_solutions_are_right(source, capsys, monkeypatch):
    """Run it once as a reader who answers nothing, with its pictures as on a phone; then each check
    with its solution."""
    monkeypatch.setattr(notebook, "narrow", True)
    cells = sources.read_cells(source)
    kinds = ("code", "fold", "text", "exercise", "check")
    namespace = sources.run_cells([cell for cell in cells if cell.kind in kinds], source)
    verdicts = re.findall("^[✓✗–] .*$", capsys.readouterr().out, flags=re.MULTILINE)
    bugs = ["bug" in exercise for exercise in checks_of(source).values()]
    assert verdicts == ["– the bug is still there" if bug else "– not attempted" for bug in bugs]
    for cell in cells:
        if cell.kind == "check":
            check = cell
        if cell.kind == "solution":
            exec(f"{cell.text}\n{check.text}", dict(namespace))
            assert capsys.readouterr().out == "✓ right\n", f"line {cell.line}"


def test_every_mistake_gets_its_message(source):
    numbers = re.findall(r'^check\("(\S+)", ', source.read_text("utf-8"), flags=re.MULTILINE)
    assert numbers == list(checks_of(source))
    for number, exercise in checks_of(source).items():
        assert exercise["mistakes"], number
        for message, mistake in exercise["mistakes"].items():
            assert notebook.verdict(mistake, **exercise) == f"✗ not yet: {message}"
        if "bug" in exercise:
            assert notebook.verdict(exercise["bug"], **exercise) == "– the bug is still there"


def test_check_names_one_wrong_place_and_never_the_right_value():
    mistakes = {
        "the square": lambda x: x**2,
        "the exponential": lambda x: np.float64(x) if x < 700 else math.exp(x),
    }

    def of_function(answer) -> str:
        inputs = [{"x": 1.0}, {"x": 800.0}]
        return notebook.verdict(answer, lambda x: 2 * x, inputs, mistakes, bug=lambda x: x + 3)

    assert of_function(lambda x: x + x) == notebook.verdict("Up ", "up") == "✓ right"
    assert of_function(lambda x: ...) == notebook.verdict(None, 3) == "– not attempted"
    assert of_function(lambda x: x + 3) == "– the bug is still there"
    assert of_function(lambda x: x * x) == "✗ not yet: the square"
    assert of_function(lambda x: math.exp(x)) == "✗ not yet: the exponential"  # the same error
    assert "your code raised ZeroDivisionError" in of_function(lambda x: x / 0)
    assert of_function(lambda x: 5) == "✗ not yet: 5 is not right for x = 1."
    changes_its_argument = notebook.verdict(lambda x: x.pop(), lambda x: x[-1], [{"x": [1, 2]}])
    assert changes_its_argument == "✓ right"
    assert notebook.verdict(float("nan"), 1.0) == "✗ not yet: nan is not right"
    matrix, zeros = np.array([[1.0, 2], [3, 5]]), np.zeros(3)
    assert "5 in place (1, 1)" in notebook.verdict(matrix, matrix + [[0, 0], [0, 1]])
    assert "of shape (3,) where one of shape (3, 1)" in notebook.verdict(zeros, zeros[:, None])


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda x: -x, "the sign is turned"),
        (lambda x: x.flip(-1), "the order is reversed"),
        (lambda x: x / 4, "every value is 0.25 times the right one"),
        (lambda x: x - 2, "every value is off by -2"),
        (lambda x: 1 - x, "each is 1 minus the right value"),
        (lambda x: x * torch.tensor([1, 1.005, 1, 1]), "nearly right, to 1 %"),
        (lambda x: x + (x > 5), "right at 1 of 2 inputs, but 8 in place (1,) (2 of 4 are wrong)"),
    ],
)
def test_check_names_the_pattern_of_a_mistake(mistake, said):
    inputs = [{"x": torch.tensor([0.0, 1.5, 4, 4])}, {"x": torch.tensor([5.0, 7, 6, -9])}]
    assert notebook.verdict(mistake, lambda x: x, inputs).startswith(f"✗ not yet: {said}")


def test_check_shows_the_row_of_a_wrong_entry_and_the_input_of_an_error():
    table = {"x": np.arange(40.0).reshape(20, 2), "n": 20}
    wrong = notebook.verdict(lambda x, n: x[:, 0] * (x[:, 0] != 26), lambda x, n: x[:, 0], [table])
    assert wrong == "✗ not yet: 0 in place (13,) is not right for x[13] = [26., 27.], n = 20"
    assert "..." not in notebook.verdict(
        lambda x: x.max(), lambda x: x.min(), [{"x": np.arange(30)}]
    )
    assert notebook.verdict(lambda x: 1 / x, lambda x: x, [{"x": 1}, {"x": 0}]).endswith(
        " for x = 0"
    )
    assert "times" not in notebook.verdict(lambda x: 0 * x, lambda x: x, [{"x": np.arange(4)}])
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


def test_a_source_keeps_to_the_conventions(source):
    cells = sources.read_cells(source)
    kinds = [cell.kind for cell in cells]
    assert cells[0].text.startswith(f"# {int(source.name[:2])} · ")
    assert cells[0].note, "how many minutes it takes"
    again = any("## For a second reading" in cell.text for cell in cells)
    assert cells[0].note.endswith(", without the second reading") == again
    numbers = {kinds.count(kind) for kind in ("exercise", "check", "hint", "solution")}
    assert numbers == {len(checks_of(source))}
    assert set(kinds) <= set(sources.KINDS)
    for cell in cells:
        assert "{=" not in cell.text or cell.kind not in ("markdown", "hint", "solution")
        if cell.kind in ("code", "exercise", "check", "solution"):
            widest = max(map(len, cell.text.splitlines()))
            assert widest <= 95, "wider than a cell of JupyterLab"


def test_every_notebook_is_built_from_its_source(source):
    assert build.is_built(source), REBUILD


def test_quoted_code_stands_in_the_repository(source):
    """A lesson quotes functions and diffs as they were when it was built."""
    notebook = build.nbformat.read(build.notebook_path(source), as_version=4)

    def file(name: str) -> str:
        return (sources.LESSONS.parent / name).read_text("utf-8")

    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        text = output.get("data", {}).get("text/markdown", "")
        if quoted := re.fullmatch(r"`([\w/]+\.py)`\n```python\n(.*)```", text, re.DOTALL):
            assert quoted[2] in file(quoted[1]), REBUILD
        if quoted := re.fullmatch(r"```diff\n--- (\S+)\n\+\+\+ (\S+)\n(.*)\n```", text, re.DOTALL):
            before, after = (file(name).splitlines() for name in quoted.groups()[:2])
            for line in quoted[3].splitlines():
                assert line[0] not in " -" or line[1:] in before, REBUILD
                assert line[0] not in " +" or line[1:] in after, REBUILD


def numbers_in(text: str) -> set[float]:
    """Numbers with a decimal point, and percentages; not those of addresses."""
    without = re.sub(r"\]\(.*?\)|\[\d{4}\.\d{5}\]", "", text)
    return {*map(float, re.findall(r"(?<![\w.])\d*\.\d+|\d+(?= ?%)", without))}


def said_in(lesson: str) -> str:
    """The text of a notebook and what its cells print."""
    text = ""
    for cell in nbformat.read(sources.LESSONS / lesson, 4).cells:
        text += cell.source if cell.cell_type == "markdown" else ""
        for output in cell.get("outputs", []):
            text += output.get("text") or output.data.get("text/markdown", "")
    return text


def test_every_number_of_the_corrections_stands_in_a_lesson_that_its_item_names():
    for item in (sources.LESSONS / "CORRECTIONS.md").read_text("utf-8").split("\n- ")[1:]:
        lessons = re.findall(r"\d\d_\w+\.ipynb", item)
        assert numbers_in(item) <= numbers_in("\n".join(map(said_in, lessons))), item


def test_lessons_are_listed_in_reading_order_and_linked_to_their_neighbours():
    order = sources.reading_order()
    index = (sources.LESSONS / "README.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\d+ · .*?)\]\((\w+)\.ipynb\)", index, flags=re.MULTILINE)
    assert listed == [(sources.heading(source), source.stem) for source in order]
    links = [sources.notebook_cells(source)[-1].text for source in order]
    for text, following in zip(links, order[1:]):
        assert text.endswith(f"[{sources.heading(following)} →]({following.stem}.ipynb)")
    for text, previous in zip(links[1:], order):
        assert text.startswith(f"[← {sources.heading(previous)}]({previous.stem}.ipynb)")


@pytest.mark.slow
def test_numbers_in_a_text_come_from_the_code_and_a_changed_source_is_noticed(scratch):
    source = (
        "# %% [markdown]\n# # 1 · X\n\n# %%\na = 1 / 3\n\n"
        "# %% [text]\n# A third is {=a:.2f}, $\\frac{a}{b}$.\n\n# %%\na\n\n# %% [hint]\n# think\n"
    )
    scratch.write_text(source, "utf-8")
    build.main(build.Config())
    first = build.notebook_path(scratch).read_bytes()
    build.main(build.Config())
    assert build.notebook_path(scratch).read_bytes() == first
    _, code, text, last, hint = build.nbformat.reads(first.decode(), 4).cells
    assert text.source == "A third is 0.33, $\\frac{a}{b}$."
    assert (code.execution_count, last.execution_count) == (1, 2)
    assert "<summary>Hint</summary>" in hint.source
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


def test_a_lesson_that_does_not_exist_is_named():
    with pytest.raises(SystemExit, match="there is no lesson 77; choose from 0, 1"):
        build.main(build.Config(only=(77,)))


# ---------------------------------------------------------------------- mathematics of the texts


def test_the_clip_as_minimum_and_maximum():
    """Minimum for A >= 0 and maximum for A < 0: of the ratios this is PPO, of the products the bug
    of exercise 2.2."""
    ratio, A = lesson_02.six["ratio"], lesson_02.six["A"]
    clipped = ratio.clamp(0.8, 1.2)

    def chosen(one, other):
        return torch.where(A >= 0, torch.minimum(one, other), torch.maximum(one, other))

    assert torch.equal(chosen(ratio, clipped) * A, torch.minimum(ratio * A, clipped * A))
    assert torch.equal(chosen(ratio * A, clipped * A), torch.minimum(ratio, clipped) * A)


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
