"""The metrics of a rollout batch and of an update by hand."""

import math

import pytest
import torch

from toy_env.metrics import rollout_metrics, update_metrics, warn_if_silent
from toy_env.rollout import Rollout


def build_rollout(mask: torch.Tensor, old_logps: torch.Tensor, **columns) -> Rollout:
    """A rollout with this mask, (B, T), whose other columns are 0 unless given."""
    B = len(mask)
    columns = {"texts": [""] * B, "ends": [2], "truncated": torch.zeros(B).bool()} | columns
    prompts = {"prompt_ids": torch.zeros(B, 1), "prompt_mask": torch.ones(B, 1)}
    columns = {"completion_ids": torch.zeros(mask.shape), "entropies": 0.5 * mask} | columns
    return Rollout(mask=mask, old_logps=old_logps, **prompts, **columns)


def test_rollout_metrics_by_hand():
    """Two prompts with two completions each, of which one and two are right."""
    mask = torch.tensor([[t < n for t in range(4)] for n in (2, 4, 1, 3)])
    truncated = torch.tensor([False, True, False, False])
    texts = ["#1", "1+1=2;#2", "#1", "3#"]
    rollout = build_rollout(mask, torch.zeros(4, 4), truncated=truncated, texts=texts)
    assert rollout_metrics(rollout, torch.tensor([[1.0, 0.0], [1.0, 1.0]])) == {
        "reward": 0.75,
        "accuracy": 0.75,
        "silent": 0.5,
        "silent_right": 0.5,
        "silent_wrong": 0.0,
        "sigma": 0.25,
        "groups_by_k": [0.0, 0.5, 0.5],
        "length": 2.5,
        "length_right": 2.0,
        "length_wrong": 4.0,
        "truncated": 0.25,
        "worked": 0.25,
        "entropy": 0.5,
        "answered": 0.75,
    }
    assert rollout_metrics(rollout, torch.zeros(2, 2))["length_right"] is None


SILENT = {"silent": 1.0, "groups_by_k": [1.0, 0.0, 0.0], "accuracy": 0.0, "truncated": 0.1}
SILENT |= {"answered": 0.9}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "--levels"),
        ({"truncated": 0.6}, "most completions were cut"),
        ({"truncated": 1.0, "accuracy": 1.0}, "--levels"),  # cut behind the answer
        ({"answered": 0.01}, "finds no answer"),
        ({"answered": 0.01, "truncated": 1.0}, "--max_new_tokens"),
    ],
)
def test_why_every_group_is_silent(row, words, capsys):
    """A line names the cause if it shows, in the second silent batch and every tenth after it, also
    of a run that falls silent late. Broken on purpose: one advice for all."""
    rows = [SILENT | {"silent": 0.5}] * 3
    for _ in range(12):
        rows.append(SILENT | row)
        warn_if_silent(rows)
    late, later = capsys.readouterr().out.splitlines()
    assert "last 2 " in late and "last 12 " in later
    assert words in late and words in later


def test_update_metrics_by_hand():
    """Five tokens at ratios .7, 1.4, 1.1, .85 and 1.4, clipped to [.8, 1.25]: with A > 0 only 1.4
    is clipped, with A < 0 only .7. A sixth, masked, counts nowhere. (test_every_script.py counts in
    batches of every script.) Broken on purpose: the ends of the clip exchanged, means over all
    columns, KL of the other direction."""
    ratio = torch.tensor([[0.7, 1.4, 1.1], [0.85, 1.4, 99.0]])
    old_logps = torch.tensor([[-1.0, -2.0, -1.0], [-1.0, -0.5, -1.0]])
    minibatch = build_rollout(torch.tensor([[True, True, True], [True, True, False]]), old_logps)
    logps = old_logps + ratio.log()
    minibatch.ref_logps = logps + math.log(2)  # k3 = 2 - 1 - log 2
    mismatch = math.log(1.4 * 1.4 * 1.1 / 0.85 / 0.7) / 5  # mean |log ratio|
    both = {"ratio_deviation": 0.4, "mismatch": mismatch, "kl": 1 - math.log(2)}
    up = {"clipped_up": 2 / 5, "clipped_down": 0}
    up["clipped_up_probability"] = (math.exp(-2) + math.exp(-0.5)) / 2
    for sign, expected in ((1, up), (-1, {"clipped_up": 0, "clipped_down": 1 / 5})):
        minibatch.advantages = torch.tensor([[1.0], [2.0]]) * sign
        values = update_metrics(minibatch, logps, low=0.2, high=0.25)
        ours = {name: value.item() for name, value in values.items()}
        assert ours == pytest.approx(expected | both)
