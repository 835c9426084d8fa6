"""lessons/group.html as a file: built from its sources, its code that of the scripts."""

import re
from pathlib import Path

from lessons.page import build


def test_the_page_is_built_from_its_sources():
    assert build.whole_page() == build.PAGE.read_text("utf-8"), "run python lessons/page/build.py"
    declared = r"^(?:export )?(?:async )?(?:const|let|class|function\*?) (\w+)"
    names = re.findall(declared, build.script_of(build.MODULES), re.MULTILINE)
    assert len(names) == len(set(names)), "modules are joined"


def test_a_published_page_says_where_and_links_to_the_lessons(monkeypatch):
    assert build.ADDRESS in (build.ROOT / "README.md").read_text("utf-8")
    monkeypatch.setattr(build, "ADDRESS", "https://example.org/ladder/")
    page = build.whole_page()
    assert '<meta property="og:url" content="https://example.org/ladder/group.html">' in page
    assert 'href="https://example.org/ladder/06_identity.html"' in page
    picture = re.search('og:image" content="https://example.org/ladder/(.*)"', page)[1]
    assert (build.ROOT / picture).is_file()


def test_the_code_shown_is_that_of_the_scripts():
    for name, script in build.SCRIPTS.items():
        source = Path(script.__file__).read_text("utf-8").splitlines()
        shown, source = build.code_of_script(script), {line.strip() for line in source}
        assert all(line.strip() in source for lines in shown.values() for line in lines), name
        assert {"sigma", "length", "replace"} <= shown.keys()
    grpo, dapo = build.code_of_script(build.grpo), build.code_of_script(build.dapo)
    tags = {"sigma": "/ sigma", "length": "/ length", "kl": "KL in the loss", "higher": "PPO: clip"}
    assert all(tag in "".join(grpo[switch]) for switch, tag in tags.items())
    assert "dynamic sampling" in "".join(dapo["replace"]) and "overlong" in dapo["rewards"][0]


def test_reasons_are_those_of_the_tags_as_plain_text():
    reasons, codes = build.reasons(), map(build.code_of_script, build.SCRIPTS.values())
    lines = [line for code in codes for part in code.values() for line in part]
    tags = re.findall(r"\[([\w. ]+: [^\]]+)\]", "\n".join(lines))
    assert {"PPO: critic", "GSPO: one ratio a completion", "DAPO: token mean"} <= set(tags)
    assert set(tags) <= reasons.keys(), "what a changed line shows has a reason"
    assert not any(re.search(r"[$\\`*]|\]\(", text) for text in reasons.values())
    assert "GRPO's ÷ σ gives" in reasons["Dr. GRPO: no / sigma"]


def test_scripts_have_lines_of_100_columns():
    for path in build.SOURCES.glob("*.js"):
        assert max(map(len, path.read_text("utf-8").splitlines())) <= 100, path.name
