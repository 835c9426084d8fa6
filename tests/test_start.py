"""The copy of the lessons to work in: it overwrites nothing, and its links lead somewhere. How the
commands start."""

import os
import re
from urllib.parse import unquote

import nbformat
import pytest
from conftest import ROOT, python

from lessons import start
from lessons.site import sources
from toy_env import UsageError

COMMANDS = [
    path
    for path in sorted(sources.LESSONS.rglob("*.py"))
    if "take_over_ctrl_c()" in path.read_text("utf-8")
]
COMMANDS += [*sorted((ROOT / "algorithms").glob("[a-z]*.py")), ROOT / "toy_env/evaluate.py"]


def test_the_links_of_the_copies_lead_somewhere(tmp_path, monkeypatch, capsys):
    (tmp_path / "a b").symlink_to(start.LESSONS)  # the space must not get into a link
    monkeypatch.setattr(start, "LESSONS", tmp_path / "a b")
    folder = tmp_path / "mine"
    start.main(start.Config(str(folder), no_open=True))
    lessons = sources.find_sources()
    assert (
        capsys.readouterr().out == f"{len(lessons)} lessons copied to {folder}, 0 already existed\n"
    )
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert set(texts) == {"README.md", "ROUTES.md", *(f"{source.stem}.ipynb" for source in lessons)}
    for name, text in texts.items():
        cells = nbformat.reads(text, as_version=4).cells if name.endswith(".ipynb") else []
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown") or text
        for link in re.findall(r"\]\(([^)\s#]+)", text):
            assert re.match("https?:", link) or (folder / unquote(link)).is_file(), (
                f"{name} links to {link}"
            )


def test_a_file_that_is_there_is_left_as_it_is(tmp_path, capsys):
    for name in ("README.md", "02_ppo.ipynb"):
        (tmp_path / name).write_text("mine", "utf-8")
    start.main(start.Config(str(tmp_path), no_open=True))
    assert (
        (tmp_path / "README.md").read_text("utf-8")
        == (tmp_path / "02_ppo.ipynb").read_text("utf-8")
        == "mine"
    )
    assert capsys.readouterr().out.endswith(", 1 already existed\n")
    assert (tmp_path / "03_group_baseline.ipynb").is_file()
    with pytest.raises(UsageError, match="^cannot write to .*; choose another --folder$"):
        start.main(start.Config(str(tmp_path / "README.md/x"), no_open=True))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_ctrl_c_while_a_command_starts_is_one_line(command, tmp_path):
    """In the first import of a module that it imports early: torch, and for commands of the
    lessons, some of which go without, dataclasses. Nothing is executed behind it."""
    interrupt = (
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('not stopped')\n"
    )
    module = "dataclasses" if command.is_relative_to(sources.LESSONS) else "torch"
    (tmp_path / f"{module}.py").write_text(interrupt, "utf-8")
    run = python(command, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (run.returncode, run.stderr) == (130, "stopped before the start\n")


def test_the_folder_of_the_site_does_not_hide_pythons_own_module():
    """lessons/ may be on the path of a subprocess; without an __init__.py lessons/site is found
    after every module."""
    code = "import site; site.getsitepackages()"
    run = python("-X", "frozen_modules=off", "-c", code, PYTHONPATH=str(sources.LESSONS))
    assert run.returncode == 0, run.stderr
