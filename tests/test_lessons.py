"""The lessons: each source runs, each check accepts the solution and rejects wrong answers,
notebooks are built."""

import math
import re
from importlib import import_module

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from lessons import kit
from lessons.checks import lesson_02, lesson_04
from lessons.site import build, sources
from toy_env import UsageError

SOURCES = sources.find_sources()
SHORT = "04_kl"
ALL_BUT_ONE_SLOW = [
    pytest.param(s, marks=pytest.mark.slow if s.stem != SHORT else (), id=s.stem) for s in SOURCES
]


@pytest.fixture(params=SOURCES, ids=lambda source: source.stem)
def source(request):
    return request.param


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The source of a repository's only lesson, not yet written."""
    monkeypatch.setattr(sources, "LESSONS", tmp_path)
    (tmp_path / "src").mkdir()
    return tmp_path / "src/01_x.py"


def printed(capsys, *args, **settings) -> str:
    """What a check says."""
    capsys.readouterr()
    kit.judge(*args, **settings)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize("source", ALL_BUT_ONE_SLOW)
def test_a_lesson_runs_and_its_checks_judge_right(source, capsys):
    """Once through as a reader who answers nothing; then each exercise with its solution and its
    wrong answers."""
    cells = sources.read_cells(source)
    kinds = ("code", "fold", "text", "exercise", "check")
    namespace = sources.run_cells([cell for cell in cells if cell.kind in kinds], source)
    unanswered = re.findall("^[✓✗–] .*$", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(unanswered) == sum(cell.kind == "check" for cell in cells)
    assert set(unanswered) <= {"– not attempted", "– the bug is still there"}
    for cell in cells:
        if cell.kind == "check":
            check = cell
        if cell.kind in ("solution", "wrong"):
            scope = dict(namespace)
            exec(compile("\n" * cell.line + cell.text, str(source), "exec"), scope)
            capsys.readouterr()
            exec(compile("\n" * check.line + check.text, str(source), "exec"), scope)
            message = capsys.readouterr().out
            expected = "✓ right\n" if cell.kind == "solution" else f"✗ not yet: {cell.note}\n"
            assert message == expected, f"line {cell.line}"


def test_a_lesson_keeps_to_the_conventions(source):
    cells = sources.read_cells(source)
    kinds = [cell.kind for cell in cells]
    text = "\n".join(cell.text for cell in cells if cell.kind in ("markdown", "text"))
    assert re.match(rf"# {int(source.name[:2])} · ", cells[0].text)
    assert (
        kinds.count("exercise")
        == kinds.count("hint")
        == kinds.count("solution")
        == kinds.count("check")
    )
    assert (
        len(text.split()) <= 1500
        and sum(map(kinds.count, ("code", "fold", "exercise", "check"))) <= 12
    )
    assert (
        max(len(cell.text.splitlines()) for cell in cells if cell.kind not in ("markdown", "text"))
        <= 25
    )
    shown = "\n".join(
        cell.text for cell in cells if cell.kind in ("code", "exercise", "check", "solution")
    )
    wide = [line for line in shown.splitlines() if len(line) > 95]
    assert not wide, "wider than a cell of JupyterLab"
    assert cells[0].note, "how many minutes it takes"
    formulas = re.findall(r"^(.*)\n\$\$", text, flags=re.MULTILINE)
    assert not any(line.strip() and not line.rstrip().endswith("$$") for line in formulas), (
        "a blank line before $$"
    )
    assert not re.search(r"/(work|home|tmp|root)/", source.read_text("utf-8"))


def test_every_notebook_is_built_from_its_source(source):
    assert build.is_built(source), "run python lessons/site/build.py"


def test_quoted_code_stands_in_the_repository(source):
    """A lesson quotes functions and diffs as they were when it was built."""
    notebook = build.nbformat.read(build.notebook_path(source), as_version=4)
    root = sources.LESSONS.parent
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        text = output.get("data", {}).get("text/markdown", "")
        if quoted := re.fullmatch(r"`([\w/]+\.py)`\n```python\n(.*)```", text, re.DOTALL):
            assert quoted[2] in (root / quoted[1]).read_text("utf-8"), (
                "run python lessons/site/build.py"
            )
        if quoted := re.fullmatch(r"```diff\n--- (\S+)\n\+\+\+ (\S+)\n(.*)\n```", text, re.DOTALL):
            before, after = (
                (root / name).read_text("utf-8").splitlines() for name in quoted.groups()[:2]
            )
            for line in quoted[3].splitlines():
                assert line[0] not in " -" or line[1:] in before, "run python lessons/site/build.py"
                assert line[0] not in " +" or line[1:] in after, "run python lessons/site/build.py"


def test_lessons_are_listed_in_reading_order_and_linked_to_their_neighbours():
    order = sources.reading_order()
    index = (sources.LESSONS / "README.md").read_text("utf-8")
    listed = re.findall(r"^- \[(\d+ · .*?)\]\((\w+)\.ipynb\)", index, flags=re.MULTILINE)
    assert listed == [(sources.heading(source), source.stem) for source in order]
    first, *_, last = (sources.notebook_cells(source) for source in order)
    assert (
        first[0].text.split("\n")[2].startswith("*About")
        and "[all lessons](README.md)" in first[-1].text
    )
    assert first[-1].text.endswith(f"{sources.heading(order[1])} →]({order[1].stem}.ipynb)")
    assert (
        last[-1].text.startswith(f"[← {sources.heading(order[-2])}]") and "→" not in last[-1].text
    )


def test_the_index_says_of_lessons_13_and_19_what_they_compute():
    """Of 13 in the same order: share of the squared length, of the progress, sigma against its
    square, no division."""
    cells = build.nbformat.read(sources.LESSONS / "13_quiet_estimators.ipynb", as_version=4).cells
    lesson = " ".join(
        " ".join(cell.source for cell in cells if cell.cell_type == "markdown").split()
    )
    index = " ".join((sources.LESSONS / "README.md").read_text("utf-8").split())
    said = re.search(
        r"have (\d+)% of the squared length and 0% .* make (\d+)% to (\d+)% of the progress\."
        r".* differs from σ by ([\d.]+) points at most.* σ gains ([\d.]+), ([\d.]+), ([\d.]+) points over",
        lesson,
    )
    squared, least, most, points, *gains = said.groups()
    assert f"have {squared} % of the squared length and none of the progress" in index
    assert (
        f"make {least} to {most} % of the progress" in index
        and f"differs from σ by {points} points of acc" in index
    )
    assert f"costs {min(gains).lstrip('0')} to {max(gains)} points over training" in index
    which_baseline = (sources.LESSONS / "19_which_baseline.ipynb").read_text("utf-8")
    assert re.search(r"Length (explains \d+ to \d+ %)", which_baseline)[1] in index


def test_numbers_in_a_text_come_from_the_code_and_a_changed_source_is_noticed(scratch):
    source = (
        "# %% [markdown]\n# # 1 · X\n\n# %%\na = 1 / 3\n\n# %% [text]\n# A third is {=a:.2f}, $\\frac{a}{b}$.\n\n"
        "# %% [wrong] no\nx\n\n# %%\na\n\n# %% [hint]\n# think\n"
    )
    scratch.write_text(source, "utf-8")
    assert not build.is_built(scratch)
    build.main(build.Config())
    first = build.notebook_path(scratch).read_bytes()
    build.main(build.Config())
    assert (
        build.notebook_path(scratch).read_bytes() == first and b"<summary>Hint</summary>" in first
    )
    _, code, text, last, _ = build.nbformat.reads(first.decode(), 4).cells
    assert text.source == "A third is 0.33, $\\frac{a}{b}$." and [
        code.execution_count,
        last.execution_count,
    ] == [1, 2]
    build.main(build.Config(check=True))
    for before, after in (("third is", "third of 1 is"), ("1 / 3", "1 / 4")):
        scratch.write_text(source.replace(before, after), "utf-8")
        with pytest.raises(UsageError, match="not built from its source: 01_x"):
            build.main(build.Config(check=True))
    scratch.write_text("# %% [exercize]\n", "utf-8")
    with pytest.raises(UsageError, match="line 1: no kind of cell"):
        build.main(build.Config())
    with pytest.raises(UsageError, match="there is no lesson 7; choose from 1"):
        build.main(build.Config(only=(7,)))


FAULTS = {
    "raise ValueError('no')": "01_x does not run to its end:\n.*ValueError",
    "import warnings\nwarnings.warn('look')": "01_x leaves a warning in the notebook: .*look",
    "# %% [text]\n# {=unknown}": "01_x does not run to its end:\n.*NameError",
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_lesson_that_fails_leaves_no_notebook(code, scratch):
    scratch.write_text(f"# %%\n{code}\n", "utf-8")
    with pytest.raises(UsageError, match=f"(?s){FAULTS[code]}"):
        build.main(build.Config())
    assert not build.notebook_path(scratch).exists()


def test_check_says_what_is_wrong_of_one_case_and_never_the_right_value(capsys):
    def verdict(answer, truth=lambda x: 2 * x) -> str:
        inputs = [{"x": 1.0}, {"x": 800.0}] if callable(truth) else None
        mistakes = {
            "": lambda x: x + 3,
            "the square": lambda x: x**2,
            "the exponential": lambda x: np.float64(x) if x < 700 else math.exp(x),
        }
        said = printed(capsys, answer, truth, inputs, mistakes=mistakes.items())
        return said.removeprefix("✗ not yet: ")

    assert verdict(lambda x: x + x) == verdict("Up ", "up") == "✓ right"
    assert verdict(lambda x: ...) == verdict(..., 3) == verdict(None, 3) == "– not attempted"
    assert verdict(lambda x: x + 3) == "– the bug is still there"
    assert (
        verdict(lambda x: x * x) == "the square"
        and verdict(lambda x: math.exp(x)) == "the exponential"
    )
    assert verdict(lambda x: x / 0).startswith("your code raised ZeroDivisionError")
    assert verdict(lambda x: 5) == "5 is not right for x = 1."
    assert (
        verdict(float("nan"), 1.0) == "nan is not right"
        and verdict("down", "up") == "'down' is not right"
    )
    matrix, zeros = np.array([[1.0, 2], [3, 5]]), np.zeros(3)
    assert verdict(matrix, matrix + [[0, 0], [0, 1]]) == "5 in place (1, 1) is not right"
    assert (
        verdict(zeros, zeros[:, None])
        == "a value of shape (3,) where one of shape (3, 1) is wanted"
    )


def test_an_answer_whose_new_version_does_not_run_is_not_judged(monkeypatch, capsys):
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    monkeypatch.setattr(kit, "get_ipython", lambda: shell)
    judged, failed = "✗ not yet", "✗ the cell that you ran before"
    for cell, verdict in (("a = 2", judged), ("a = = 3", failed), ("a = 3", judged)):
        shell.run_cell(f"{cell}\n")
        capsys.readouterr()
        kit.check("0.1", lambda z, R, b, rate: 2)
        assert capsys.readouterr().out.startswith(verdict)


def test_exercises_and_their_checks_are_numbered_alike(source, capsys):
    checks = import_module(f"lessons.checks.lesson_{source.name[:2]}").CHECKS
    numbers = re.findall(
        r'^check\("(\d+\.\d+)", \w+', source.read_text("utf-8"), flags=re.MULTILINE
    )
    assert (
        numbers
        == [f"{int(source.name[:2])}.{i}" for i in range(1, len(numbers) + 1)]
        == sorted(checks)
    )
    for number in numbers:
        kit.check(number, ... if checks[number].get("inputs") is None else lambda *_: ...)
        assert capsys.readouterr().out == "– not attempted\n"


def test_the_clip_as_minimum_and_maximum():
    """Minimum for A >= 0 and maximum for A < 0: of the ratios this is PPO, of the products the bug
    of exercise 2.2."""
    ratio, A = lesson_02.six["ratio"], lesson_02.six["A"]
    clipped = ratio.clamp(0.8, 1.2)
    of_ratios = (
        torch.where(A >= 0, torch.minimum(ratio, clipped), torch.maximum(ratio, clipped)) * A
    )
    of_products = torch.where(
        A >= 0, torch.minimum(ratio * A, clipped * A), torch.maximum(ratio * A, clipped * A)
    )
    assert of_ratios.tolist() == [0.5, 1, 1.2, -0.8, -1, -1.5]  # the table of lesson 2
    assert (
        of_products.tolist()
        == (A * torch.minimum(ratio, clipped)).tolist()
        == [0.5, 1, 1.2, -0.5, -1, -1.2]
    )


def test_k3_times_the_ratio_is_the_reverse_kl_of_the_next_token_after_prefixes_of_the_old_policy():
    """Two tokens, the policy and all prefixes moved: autograd through the loss against autograd
    through the sums."""
    new = (lesson_04.theta + torch.tensor([[0.3, -0.5], [0.2, 0.9], [-0.6, 0.1]])).requires_grad_()
    logps, old_logps, ref_logps = map(
        lesson_04.token_logps, (new, lesson_04.theta, lesson_04.other_ref)
    )
    k3 = (ref_logps - logps).expm1() - (ref_logps - logps)
    loss = ((logps - old_logps).exp() * k3).sum(dim=1).mean()
    kl = (new.softmax(dim=1) * (new.log_softmax(dim=1) - lesson_04.other_ref)).sum(
        dim=1
    )  # of each next token
    truth = kl[0] + lesson_04.theta[0].softmax(dim=0) @ kl[1:]
    torch.testing.assert_close(loss, truth)
    torch.testing.assert_close(*(torch.autograd.grad(value, new)[0] for value in (loss, truth)))
