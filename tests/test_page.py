"""lessons/group.html as a file: built from its sources, small, its code that of the scripts."""

import re
from pathlib import Path

from lessons.page import build


def test_the_page_is_built_from_its_sources_and_is_small():
    page = build.PAGE.read_text("utf-8")
    assert build.whole_page() == page, "run python lessons/page/build.py"
    assert len(page.encode()) <= 2.5e6
    ids = re.findall(r' id="([\w-]+)"', page)
    used = set(re.findall(r'\$\("([\w-]+)"\)', page))
    assert len(ids) == len(set(ids)) and used <= {*ids, "dial-k", "dial-G", "dial-"}
    declared = r"^(?:export )?(?:async )?(?:const|let|class|function\*?) (\w+)"
    names = re.findall(declared, build.script_of(build.MODULES), re.MULTILINE)
    assert len(names) == len(set(names)), "modules are joined"


def test_the_address_is_in_the_page_and_in_the_readme(monkeypatch):
    assert build.ADDRESS in (build.ROOT / "README.md").read_text("utf-8")
    assert ("og:url" in build.whole_page()) == bool(build.ADDRESS)
    monkeypatch.setattr(build, "ADDRESS", "https://example.org/ladder/")
    page = build.whole_page()
    assert '<meta property="og:url" content="https://example.org/ladder/group.html">' in page
    assert 'href="https://example.org/ladder/06_identity.html"' in page
    picture = re.search('og:image" content="https://example.org/ladder/(.*)"', page)[1]
    assert (build.ROOT / picture).stat().st_size <= 1.5e6


def test_the_code_shown_is_that_of_the_scripts():
    texts = [Path(script.__file__).read_text("utf-8") for script in build.SCRIPTS.values()]
    source = {line.strip() for text in texts for line in text.splitlines()}
    for name, script in build.SCRIPTS.items():
        shown = build.code_of_script(script)
        assert all(line.strip() in source for lines in shown.values() for line in lines), name
        assert {"compute_advantages", "policy_loss"} <= shown.keys()
    assert "/ sigma" in "".join(build.code_of_script(build.grpo)["compute_advantages"])
    assert "while len(kept" in build.code_of_script(build.dapo)["train"][0]
