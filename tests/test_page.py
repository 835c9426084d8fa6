"""lessons/group.html as a file: built from its sources, small, its weights and its code those of the repository."""

import re
from pathlib import Path

import numpy as np
import pytest

from algorithms import dapo, dr_grpo, grpo
from lessons.page import build
from toy_env import UsageError
from toy_env.model import load_policy


def test_the_page_is_built_from_its_sources_and_is_small():
    page = build.PAGE.read_text("utf-8")
    assert build.page_of(build.part_of(page, "weights")) == page, "run python lessons/page/build.py"
    assert len(page.encode()) <= 2.5e6
    written = [path for path in build.SOURCES.iterdir() if path.suffix in (".js", ".css", ".html", ".py")]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in written) < 1200
    ids = re.findall(r' id="([\w-]+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r'\$\("([\w-]+)"\)', page)) <= {*ids, "dial-k"}


@pytest.mark.parametrize("cut", [0, 1000, 20_000, 2_000_000])
def test_a_page_that_is_cut_or_holds_other_policies_is_refused(cut, tmp_path, monkeypatch):
    page = build.PAGE.read_bytes()
    assert page.index(b'id="policy-names"') < 2_000_000 < page.index(b'<script type="module">')
    monkeypatch.setattr(build, "PAGE", tmp_path / "group.html")
    build.PAGE.write_bytes(page[:cut])
    with pytest.raises(UsageError, match="restore it, or add --train"):
        build.main(build.Config())
    assert build.PAGE.read_bytes() == page[:cut]
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
    gone = [line for name in ("Dr. GRPO", "DAPO") for mark, line in shown[name] if mark == "-"]
    assert any("/ sigma" in line for line in gone) and any("config.kl_coef" in line for line in gone)
    new = "".join(line for mark, line in shown["DAPO"] if mark == "+")
    assert all(idea in new for idea in ("while len(kept", "overlong_penalty", "clip_eps_high", "token mean"))


def test_weights_survive_packing():
    base = build.rows_of(load_policy("base")[0])
    rng = np.random.default_rng(0)
    other = [tensor + rng.normal(0, 0.01, tensor.shape).astype(np.float32) for tensor in base]
    first, second = build.unpack(build.pack(base, [other]))
    assert all(np.array_equal(a, b) for a, b in zip(base, first))
    for a, b, c in zip(base, other, second):
        assert (np.abs(b - c) <= np.abs(b - a).max(axis=1, keepdims=True) / 254 + 1e-7).all()
