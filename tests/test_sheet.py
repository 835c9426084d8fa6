"""algorithms/SHEET.md and TAGS.md, and the page ladder.html: made from the scripts, and true of
them."""

import html
import json
import re
from importlib import import_module

import pytest
import torch
from conftest import ROOT
from test_ladder import SCRIPTS, source, tags

from lessons.site import ladder

TAGS = ladder.table_rows((ROOT / "algorithms/TAGS.md").read_text("utf-8"))
SHEET = ladder.table_rows((ROOT / "algorithms/SHEET.md").read_text("utf-8"))
ADVANTAGES = {  # of the right one and of a wrong one of four, one of which is right; of four right ones
    "$R_i$": (1.0, 0.0, 1.0), r"$R_i - \mu$": (0.75, -0.25, 0.0), "$R_i - b_i$": (1.0, -1 / 3, 0.0),
    r"$(R_i - \mu)/\sigma$": (3**0.5, -(3**-0.5), 0.0), r"$(R'_i - \mu')/\sigma'$": (3**0.5, -(3**-0.5), 0.0),
    r"$(R_i - \mu)/\mu$": (3.0, -1.0, 0.0),
}  # fmt: skip
DIVISORS = {
    r"$B\,C$": [112, 112],
    r"$B\,L_i$": [2, 6],
    "$N$": [4, 4],
}  # of two completions of 1 and 3 tokens


def test_every_tag_has_an_entry_that_names_what_exists():
    in_scripts = {f"{origin}: {label}" for name in SCRIPTS for origin, label in tags(source(name))}
    assert [row["tag"] for row in TAGS] == list(ladder.tags(ROOT)) and in_scripts == {
        row["tag"] for row in TAGS
    }
    glossary = (ROOT / "toy_env/README.md").read_text("utf-8").split("## Glossary of metrics")[1]
    for row in TAGS:
        assert set(re.findall(r"`(\w+)`", row["seen in"])) <= set(
            re.findall(r"`(\w+)`", glossary)
        ), row["tag"]
        number, lesson, start = re.fullmatch(
            r"\[(\d+)\]\(\.\./(lessons/(\d\d)_\w+\.ipynb)\)", row["lesson"]
        ).groups()
        assert int(number) == int(start) and (ROOT / lesson).is_file()
        assert all(
            paper in "".join(map(source, SCRIPTS))
            for paper in re.findall(r"abs/([\d.]+)", row["paper"])
        )


def test_the_page_leads_from_each_script_to_each_other():
    pytest.importorskip(
        "latex2mathml", reason="the site needs latex2mathml: pip install -e '.[page]'"
    )
    data = json.loads(ladder.ladder(ROOT, set()).split('id="data">')[1].split("</script>")[0])
    for name, lines in data["scripts"].items():
        assert [html.unescape(re.sub("<[^>]*>", "", line)) for line in lines] == source(
            name
        ).splitlines()
    for pair, (of_heads, of_code) in data["changes"].items():
        before, after = (data["scripts"][name] for name in pair.split("-"))
        changes, start = of_heads + of_code, of_code[0][1]
        assert re.match("(@|class|def)", html.unescape(re.sub("<[^>]*>", "", before[start])))
        assert (
            sum(
                (before[a:b] if kind == "equal" else after[c:d] for kind, a, b, c, d in changes), []
            )
            == after
        )
    assert len(data["changes"]) == 72
    assert not any(re.search(r"</code> [SPVE]\b|<em>src", text) for text in data["tags"].values())


@pytest.mark.parametrize("row", SHEET, ids=lambda row: row["script"])
def test_the_sheet_is_true_of_the_script(row):
    """At the first update of a batch, minus the derivative of the loss by a token's log-probability
    is A / D."""
    script = import_module("algorithms." + re.search(r"\((\w+)\.py\)", row["script"])[1])
    config, mask = script.Config(), torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    low, high = (
        getattr(config, f"clip_eps{side}", getattr(config, "clip_eps", 0))
        for side in ("_low", "_high")
    )
    kl = f"{getattr(config, 'kl_coef', 'none')}".lstrip("0")
    assert row["range of the clip"].replace("[.", "[0.") == (
        rf"$[{1 - low:g},\ {1 + high:g}]$" if high else ""
    )
    assert row[r"KL, weight $\beta$"].split(", ")[-1] == kl
    if script.__name__ != "algorithms.ppo":
        advantages = script.compute_advantages(rewards=torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]]))
        assert tuple(advantages[[0, 0, 1], [0, 1, 0]].tolist()) == pytest.approx(
            ADVANTAGES[row["advantage $A$"]]
        )
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    others = {"old_logps", "ref_logps"} & script.policy_loss.__annotations__.keys()
    others = dict.fromkeys(others, logps.detach()) | {"advantages": torch.full((2, 1), -1.0)}
    script.policy_loss(logps=logps, mask=mask, config=config, **others).backward()
    torch.testing.assert_close(
        logps.grad, mask / torch.tensor(DIVISORS[row["divisor $D$"]])[:, None]
    )
