"""lessons/group.html as a file: built from its sources, small, its code that of the scripts."""

import re
from pathlib import Path

import pytest

from algorithms import dapo, dr_grpo, grpo
from lessons.page import build
from toy_env import UsageError


def test_the_page_is_built_from_its_sources_and_is_small():
    page = build.PAGE.read_text("utf-8")
    assert build.whole_page(build.part_of(page, "weights")) == page, "run python lessons/page/build.py"
    assert len(page.encode()) <= 2.5e6
    ids = re.findall(r' id="([\w-]+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r'\$\("([\w-]+)"\)', page)) <= {*ids, "dial-k"}


def test_a_page_that_is_cut_or_holds_other_policies_is_refused(tmp_path, monkeypatch):
    page = build.PAGE.read_bytes()
    assert page.index(b'id="policy-names"') < 2_000_000 < page.index(b'<script type="module">')
    monkeypatch.setattr(build, "PAGE", tmp_path / "group.html")
    for end in (0, 1000, 20_000, 2_000_000):
        build.PAGE.write_bytes(page[:end])
        with pytest.raises(UsageError, match="restore it, or add --train"):
            build.main(build.Config())
        assert build.PAGE.read_bytes() == page[:end]
    build.PAGE.write_bytes(page)
    build.main(build.Config())
    assert build.PAGE.read_bytes() == page
    monkeypatch.setattr(build, "RUNS", dict(reversed(build.RUNS.items())))
    with pytest.raises(UsageError, match="restore it, or add --train"):
        build.main(build.Config())


def test_the_code_shown_is_that_of_the_scripts():
    shown = build.diffs()
    for name, script in (("GRPO", grpo), ("Dr. GRPO", dr_grpo), ("DAPO", dapo)):
        source = {line.strip() for line in Path(script.__file__).read_text("utf-8").splitlines()}
        assert all(line.strip() in source for mark, line in shown[name] if mark in " +")
    removed = [line for name in ("Dr. GRPO", "DAPO") for mark, line in shown[name] if mark == "-"]
    assert any("/ sigma" in line for line in removed) and any("config.kl_coef" in line for line in removed)
    added = "".join(line for mark, line in shown["DAPO"] if mark == "+")
    assert all(idea in added for idea in ("while len(kept", "overlong_penalty", "clip_eps_high", "token mean"))
