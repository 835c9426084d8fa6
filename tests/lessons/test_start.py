"""The copy of the lessons to work in: it overwrites nothing, and its links lead somewhere."""

import re
from urllib.parse import unquote

from conftest import python

from lessons import start


def test_copies_link_to_files_and_overwrite_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "a b").symlink_to(start.LESSONS)  # the space must not get into a link
    monkeypatch.setattr(start, "LESSONS", tmp_path / "a b")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "02_ppo.ipynb").write_text("mine", "utf-8")
    start.main(start.Config(str(folder), no_open=True))
    assert f"lessons copied to {folder}, 1 already" in capsys.readouterr().out
    assert (folder / "02_ppo.ipynb").read_text("utf-8") == "mine"
    link = re.compile(r"\]\((?!https?:)([^)#\"]+\.(?:py|md|ipynb|png))")
    for path in folder.iterdir():
        for target in link.findall(path.read_text("utf-8")):
            is_file = (folder / unquote(target)).is_file()
            assert is_file and " " not in target, f"{path.name} links to {target}"


def test_the_first_command_does_not_wait_for_torch():
    code = "import sys, lessons.start; sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0
