"""lessons/group.html as a file: built from its sources, its code that of the scripts."""

import re

from lessons.page import build


def test_the_page_is_built_from_its_sources():
    assert build.whole_page() == build.PAGE.read_text("utf-8"), "run python lessons/page/build.py"


def test_a_published_page_says_where_and_links_to_the_lessons(monkeypatch):
    assert build.ADDRESS in (build.ROOT / "README.md").read_text("utf-8")
    monkeypatch.setattr(build, "ADDRESS", "https://example.org/ladder/")
    page = build.whole_page()
    assert '<meta property="og:url" content="https://example.org/ladder/group.html">' in page
    assert 'href="https://example.org/ladder/06_identity.html"' in page
    picture = re.search('og:image" content="https://example.org/ladder/(.*)"', page)[1]
    assert (build.ROOT / picture).is_file()


def test_the_code_shown_is_that_of_the_scripts():
    """What is built comes from the scripts; each switch has the lines that it changes."""
    for name, tags in {
        "GRPO": {"sigma": "/ sigma", "length": "/ length", "kl": "KL in the loss"},
        "DAPO": {"higher": "clip-higher", "replace": "dynamic sampling", "rewards": "overlong"},
    }.items():
        code = build.code_of_script(build.SCRIPTS[name])
        for switch, tag in tags.items():
            assert f"{tag}]" in "".join(code[switch]), switch


def test_reasons_are_those_of_the_tags_as_plain_text():
    reasons = build.reasons()
    assert not any(re.search(r"[$\\`*]|\]\(", text) for text in reasons.values())
    assert "GRPO's ÷ σ gives" in reasons["Dr. GRPO: no / sigma"]
