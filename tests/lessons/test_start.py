"""The copy of the lessons to work in: it overwrites nothing, and its links lead somewhere."""

import re
from urllib.parse import unquote

import nbformat
from conftest import ROOT, python

from lessons import start
from lessons.workshop import sources


def test_copies_link_to_files_and_overwrite_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "a b").symlink_to(start.LESSONS)  # the space must not get into a link
    monkeypatch.setattr(start, "LESSONS", tmp_path / "a b")
    folder, lessons = tmp_path / "mine", sources.find_sources()
    folder.mkdir()
    (folder / "02_ppo.ipynb").write_text("mine", "utf-8")
    start.main(start.Config(str(folder), no_open=True))
    assert f"{len(lessons) - 1} lessons copied to {folder}, 1 already" in capsys.readouterr().out
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert texts.pop("02_ppo.ipynb") == "mine"
    for name, text in texts.items():
        if name.endswith(".ipynb"):
            cells = nbformat.reads(text, as_version=4).cells
            text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        for link in re.findall(r"\]\(([^)\s#]+)", text):
            is_file = (folder / unquote(link)).is_file()
            assert is_file or re.match("https?:", link), f"{name} links to {link}"


def test_the_first_command_does_not_wait_for_torch():
    code = "import sys, lessons.start; sys.exit('torch' in sys.modules)"
    assert python("-c", code, cwd=ROOT).returncode == 0
