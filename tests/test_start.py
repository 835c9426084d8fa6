"""The copy of the lessons to work in: it overwrites nothing, and its links lead somewhere. How the commands start."""

import os
import re
import subprocess
import sys
from urllib.parse import unquote

import nbformat
import pytest

from lessons import start
from lessons.site import sources
from toy_env import UsageError

ROOT = sources.LESSONS.parent
COMMANDS = [path for path in sorted(sources.LESSONS.rglob("*.py")) if "take_over_ctrl_c()" in path.read_text("utf-8")]


def test_the_links_of_the_copies_lead_somewhere(tmp_path, monkeypatch, capsys):
    (tmp_path / "a b").symlink_to(start.LESSONS)  # the space must not get into a link
    monkeypatch.setattr(start, "LESSONS", tmp_path / "a b")
    folder = tmp_path / "mine"
    start.main(start.Config(str(folder), open=False))
    lessons = sources.find_sources()
    assert capsys.readouterr().out == f"{len(lessons)} lessons copied to {folder}, 0 already existed\n"
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert set(texts) == {"README.md", *(f"{source.stem}.ipynb" for source in lessons)}
    for name, text in texts.items():
        cells = nbformat.reads(text, as_version=4).cells if name.endswith(".ipynb") else []
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown") or text
        for link in re.findall(r"\]\(([^)\s#]+)", text):
            assert re.match("https?:", link) or (folder / unquote(link)).is_file(), f"{name} links to {link}"


def test_a_file_that_is_there_is_left_as_it_is(tmp_path, capsys):
    for name in ("README.md", "02_ppo.ipynb"):
        (tmp_path / name).write_text("mine", "utf-8")
    start.main(start.Config(str(tmp_path), open=False))
    assert (tmp_path / "README.md").read_text("utf-8") == (tmp_path / "02_ppo.ipynb").read_text("utf-8") == "mine"
    assert (
        capsys.readouterr().out.endswith(", 1 already existed\n") and (tmp_path / "03_group_baseline.ipynb").is_file()
    )
    with pytest.raises(UsageError, match="^cannot write to .*; choose another --folder$"):
        start.main(start.Config(str(tmp_path / "README.md/x"), open=False))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda path: path.stem)
def test_ctrl_c_while_a_command_imports_torch_is_one_line(command, tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", "utf-8")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run([sys.executable, str(command)], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "stopped before the start\n")


def test_the_folder_of_the_site_does_not_hide_pythons_own_module():
    """lessons/ may be on the path of a subprocess; without an __init__.py lessons/site is found after every module."""
    environment = os.environ | {"PYTHONPATH": str(sources.LESSONS)}
    command = [sys.executable, "-X", "frozen_modules=off", "-c", "import site; site.getsitepackages()"]
    subprocess.run(command, env=environment, check=True)
