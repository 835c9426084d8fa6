"""algorithms/README.md and options.json are true of the scripts."""

import json
import re
from importlib import import_module

import pytest
import torch
from conftest import ROOT, policy_loss
from test_ladder import SCRIPTS, source, tags

from lessons.page import build

PAGE = (ROOT / "algorithms/README.md").read_text("utf-8")
HEAD, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\|.*", PAGE, re.M)
]
LOSSES = {row[0]: dict(zip(HEAD, row)) for row in ROWS}  # the table, by the script's title
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
DIVISORS = {"$B C$": [112, 112], "$B L_i$": [2, 6], "$N$": [4, 4]}


def test_every_tag_has_an_entry_under_its_script_and_names_its_lesson():
    in_scripts = {f"{origin}: {label}" for name in SCRIPTS for origin, label in tags(source(name))}
    entries = build.reasons()
    missing = in_scripts - entries.keys()
    assert not missing, f"algorithms/README.md: explain {missing}, as: - **[tag]** why<br>"
    assert entries.keys() == in_scripts, "algorithms/README.md explains a tag that no script has"
    for section in PAGE.split("\n## ")[1:]:
        names = re.findall(r"^- \*\*\[(.+?): ", section, re.M)
        assert all(section.startswith(f"[{name}](") for name in names)
    lessons = re.findall(r"\[(\d+)\]\(\.\./lessons/(\d+)_\w+\.ipynb\)", PAGE)
    assert all(int(number) == int(file) for number, file in lessons)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_table_is_true_of_the_script(name):
    """At the first update of a batch, minus the derivative of the loss by a token's log-probability
    is A / D."""
    assert SCRIPTS[name] in LOSSES, "add a row to the table in algorithms/README.md"
    row, script = LOSSES[SCRIPTS[name]], import_module(f"algorithms.{name}")
    config, mask = script.Config(), torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    bounds = [getattr(config, field) for field in vars(config) if field.startswith("clip_eps")]
    shown = [float(number) for number in re.findall(r"\d*\.\d+", row["clip"])]
    assert shown == ([1 - bounds[0], 1 + bounds[-1]] if bounds else [])
    kl = f"{getattr(config, 'kl_coef', 'none')}".lstrip("0")
    assert row[r"KL, weight $\beta$"].split(", ")[-1] == kl
    if name != "ppo":
        A = script.compute_advantages(rewards=torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]]))
        shown = row["advantage $A$"]
        assert shown in ADVANTAGES, "work out its values by hand, and add them to ADVANTAGES"
        assert (A[0, 0], A[0, 1], A[1, 0]) == pytest.approx(ADVANTAGES[shown])
        moves = (
            "replaced" if hasattr(script, "is_mixed") else "its reward" if A[1, 0] else "KL alone"
        )
        assert row["silent"] == moves
    logps = torch.full((2, 3), -1.0, requires_grad=True)
    inputs = dict.fromkeys(("old_logps", "ref_logps"), logps.detach())
    inputs |= {"advantages": torch.full((2, 1), -1.0), "mask": mask, "config": config}
    policy_loss(script, logps=logps, **inputs).backward()
    divisors = torch.tensor(DIVISORS[row["divisor $D$"]])[:, None]
    torch.testing.assert_close(logps.grad, mask / divisors)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_options_in_the_table_are_those_of_the_file(name):
    options = json.loads((ROOT / "algorithms/options.json").read_text("utf-8"))
    assert name in options, f"algorithms/options.json lacks {name}; null: the library has none"
    for library in ("TRL", "verl"):
        cell, known = LOSSES[SCRIPTS[name]][library], options[name][library] or {}
        assert (cell == "none") == (not known)
        for option, value in re.findall(r"`(\S+)=(\S+)`", cell):
            assert value in [str(known[key]) for key in known if key.endswith(option)]
