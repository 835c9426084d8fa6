"""Metrics of a rollout batch and of an update; toy_env/README.md has a glossary of all."""

import math
from types import ModuleType

import torch
from torch import Tensor
from tqdm import tqdm

from toy_env import arithmetic
from toy_env.rollout import Rollout

TOLERANCE = 1e-3  # of log-probabilities that are computed twice in float32


def rollout_metrics(rollout: Rollout, rewards: Tensor, task: ModuleType = arithmetic) -> dict:
    """Metrics of a rollout batch, from rewards (P, G) in {0, 1}. Lengths in tokens, EOS included.

    None stands where there is nothing to average: the length of right completions if none is right.
    """

    def mean(values: Tensor) -> float | None:
        return values.double().mean().item() if values.numel() else None

    rewards, lengths = rewards.cpu(), rollout.mask.sum(dim=1).cpu()
    right, G = rewards == 1, rewards.shape[1]
    k = right.sum(dim=1)  # (P,) right completions of each group
    answers = [task.extract_answer(text) for text in rollout.texts]
    return {
        "reward": mean(rewards),
        "accuracy": mean(right),
        "silent": mean((k == 0) | (k == G)),
        "silent_right": mean(k == G),
        "silent_wrong": mean(k == 0),
        "sigma": mean((k * (G - k)).double().sqrt() / G),
        "groups_by_k": (torch.bincount(k, minlength=G + 1) / len(k)).tolist(),
        "length": mean(lengths),
        "length_right": mean(lengths[right.flatten()]),
        "length_wrong": mean(lengths[~right.flatten()]),
        "truncated": mean(rollout.truncated.cpu()),
        "worked": sum(map(task.is_worked, rollout.texts)) / len(rollout),
        "entropy": (rollout.entropies.sum() / rollout.mask.sum()).item(),
        "answered": 1 - answers.count(None) / len(answers),
    }


def warn_if_silent(rows: list[dict]) -> None:
    """Say so when every group of the last two batches was silent, and again after every ten more,
    with the cause if it shows. rows: of the log. Groups of one are not meant, they have no
    baseline."""
    silent = 0
    for row in reversed(rows):
        if row["silent"] < 1 or len(row["groups_by_k"]) == 2:
            break
        silent += 1
    if silent % 10 != 2:
        return
    last = rows[-1]
    advice = (
        "try other --levels (easier ones if all are wrong), another prompt (the task's "
        "INSTRUCTION), or a larger --group_size"
    )
    if last["truncated"] >= 0.5 > last["accuracy"]:
        advice = "most completions were cut: raise --max_new_tokens, or see why they do not end"
    elif last["answered"] < 0.05:
        advice = "the verifier finds no answer: ask for its form (the task's INSTRUCTION)"
    tqdm.write(
        f"in the last {silent} batches every group was all right or all wrong: with a group "
        f"baseline, such groups teach nothing; {advice}"
    )


def step_metrics(recorded: dict[str, list[float]]) -> dict:
    """The mean over the updates of a step; `mismatch` of the first and the largest
    `ratio_deviation`."""
    row = {name: math.fsum(values) / len(values) for name, values in recorded.items()}
    if "mismatch" in row:  # only at the first update are sampler and trainer the same policy
        row["mismatch"] = recorded["mismatch"][0]
        row["ratio_deviation"] = max(recorded["ratio_deviation"])
    return row


@torch.no_grad()
def update_metrics(
    minibatch: Rollout,  # with its advantages
    logps: Tensor,  # (B, T)
    low: float,  # the ratio is clipped to [1 - low, 1 + high]
    high: float,
    ratio: Tensor | None = None,  # (B, 1) or (B, T), clipped; by default each token's own ratio
) -> dict[str, Tensor]:
    """Metrics of a minibatch before its optimizer step, over its unmasked tokens.

    `clipped_up`, `clipped_down`: shares of tokens whose gradient the clip stops (A > 0 and the
    ratio above the range; A < 0 and the ratio below it), or, where the ratio is a weight, whose
    weight it caps (of those with A > 0). `ratio_deviation`: the largest |ratio - 1|. `mismatch`:
    mean |log-probability - the sampler's|. `kl`: mean of the k3 estimate of KL(policy ||
    reference), if there is a reference. `clipped_up_probability`: mean probability, under the
    policy that sampled them, of the tokens in `clipped_up`, if there are any.
    """
    mask, advantages = minibatch.mask, minibatch.advantages
    log_ratio = logps - minibatch.old_logps
    ratio = log_ratio.exp() if ratio is None else ratio
    tokens = mask.sum().clamp(min=1)
    up = (advantages > 0) & (ratio > 1 + high) & mask
    metrics = {
        "clipped_up": up.sum() / tokens,
        "clipped_down": ((advantages < 0) & (ratio < 1 - low) & mask).sum() / tokens,
        "ratio_deviation": ((ratio - 1).abs() * mask).max(),
        "mismatch": (log_ratio.abs() * mask).sum() / tokens,
    }
    if up.any():
        metrics["clipped_up_probability"] = minibatch.old_logps[up].exp().mean()
    if minibatch.ref_logps is not None:
        log_u = minibatch.ref_logps - logps
        metrics["kl"] = ((log_u.exp() - 1 - log_u) * mask).sum() / tokens
    return metrics


def check_ratio(minibatch: Rollout, logps: Tensor, dtype: str) -> None:
    """Print how far log-probabilities, (B, T), are at most from those recorded while sampling.

    Before the first update it is rounding; in float32, more than that raises SystemExit. So does a
    finished completion whose mask does not end on an end token. Either way, what is trained would
    not be what was sampled.
    """
    distance = (logps.detach() - minibatch.old_logps).abs().max().item()
    update = minibatch.updates + 1
    tqdm.write(f"before update {update}, max |log pi - log pi_old| = {distance:.0e}")
    if update == 1 and dtype == "float32" and not distance <= TOLERANCE:
        disagree = f"log-probabilities differ by {distance:.0e} when sampled and when recomputed"
        raise SystemExit(f"{disagree}: this model cannot be trained here; give another --model")
    last = minibatch.mask.sum(dim=1, keepdim=True) - 1
    last_ids = minibatch.completion_ids.gather(1, last)[~minibatch.truncated]
    if not torch.isin(last_ids, torch.tensor(minibatch.ends, device=last.device)).all():
        raise SystemExit("the mask of a finished completion does not end in an end token")
