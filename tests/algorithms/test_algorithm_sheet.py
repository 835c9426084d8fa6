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

from lessons.workshop.site import ladder

TAGS = ladder.table_rows((ROOT / "algorithms/TAGS.md").read_text("utf-8"))
SHEET = ladder.table_rows((ROOT / "algorithms/SHEET.md").read_text("utf-8"))
# The advantages of the right one and of a wrong one of four, one of which is right; of four right
ADVANTAGES = {
    "$R_i$": (1.0, 0.0, 1.0),
    r"$R_i - \mu$": (0.75, -0.25, 0.0),
    "$R_i - b_i$": (1.0, -1 / 3, 0.0),
    r"$(R_i - \mu)/\sigma$": (3**0.5, -(3**-0.5), 0.0),
    r"$(R'_i - \mu')/\sigma'$": (3**0.5, -(3**-0.5), 0.0),
    r"$(R_i - \mu)/\mu$": (3.0, -1.0, 0.0),
    r"$(R_i - \mu)/\sigma_B$": (6**0.5, -(6**0.5) / 3, 0.0),  # of these two groups together
}
# For two completions of 1 and 3 tokens
DIVISORS = {r"$B\,C$": [112, 112], r"$B\,L_i$": [2, 6], "$N$": [4, 4]}


def test_every_tag_has_an_entry_that_names_what_exists():
    in_scripts = {f"{origin}: {label}" for name in SCRIPTS for origin, label in tags(source(name))}
    listed = [row["tag"] for row in TAGS]
    assert listed == list(ladder.tags(ROOT)) and set(listed) == in_scripts
    glossary = (ROOT / "toy_env/README.md").read_text("utf-8").split("## Glossary of metrics")[1]
    metrics = set(re.findall(r"`(\w+)`", glossary))
    for row in TAGS:
        assert set(re.findall(r"`(\w+)`", row["seen in"])) <= metrics, row["tag"]
        number, lesson = re.fullmatch(r"\[(\d+)\]\(\.\./(\S+\.ipynb)\)", row["lesson"]).groups()
        assert (ROOT / lesson).is_file() and lesson.startswith(f"lessons/{int(number):02}_")


def test_the_page_leads_from_each_script_to_each_other():
    pytest.importorskip("latex2mathml", reason="pip install -e '.[page]'")
    data = json.loads(ladder.ladder(ROOT, set()).split('id="data">')[1].split("</script>")[0])
    for name, lines in data["scripts"].items():
        plain = [html.unescape(re.sub("<[^>]*>", "", line)) for line in lines]
        code = source(name).splitlines()
        assert plain == code[-len(plain) :] and plain[0] == "@dataclass"
    for pair, changes in data["changes"].items():
        old, new = (data["scripts"][name] for name in pair.split("-"))
        made = []
        for kind, a, b, c, d in changes:
            made += old[a:b] if kind == "equal" else new[c:d]
        assert made == new
    assert len(data["changes"]) == 100


@pytest.mark.parametrize("row", SHEET, ids=lambda row: row["script"])
def test_the_sheet_is_true_of_the_script(row):
    """At the first update of a batch, minus the derivative of the loss by a token's log-probability
    is A / D."""
    script = import_module("algorithms." + re.search(r"\((\w+)\.py\)", row["script"])[1])
    config, mask = script.Config(), torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    names = [name for name in vars(config) if name.startswith("clip_eps")]
    bounds = [getattr(config, name) for name in names]
    shown = rf"$[{1 - bounds[0]:g},\ {1 + bounds[-1]:g}]$" if bounds else ""
    assert row["range of the clip"].replace("[.", "[0.") == shown
    kl = f"{getattr(config, 'kl_coef', 'none')}".lstrip("0")
    assert row[r"KL, weight $\beta$"].split(", ")[-1] == kl
    if script.__name__ != "algorithms.ppo":
        A = script.compute_advantages(rewards=torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]]))
        expected = ADVANTAGES[row["advantage $A$"]]
        assert (A[0, 0], A[0, 1], A[1, 0]) == pytest.approx(expected)
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    others = {"old_logps", "ref_logps"} & script.policy_loss.__annotations__.keys()
    others = dict.fromkeys(others, logps.detach()) | {"advantages": torch.full((2, 1), -1.0)}
    script.policy_loss(logps=logps, mask=mask, config=config, **others).backward()
    divisors = torch.tensor(DIVISORS[row["divisor $D$"]])[:, None]
    torch.testing.assert_close(logps.grad, mask / divisors)
