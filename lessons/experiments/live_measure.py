"""What `live_run.py` measures at a step of training: one prompt's groups, the scripts' loss, later updates of a batch.

A score is the gradient of an answer's log-probability, all its tokens and the EOS. Everything about a group follows
from the inner products of its answers' scores. Most answers to a prompt come many times, so few scores are needed.
"""

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons import identity
from lessons.float64 import to_float64
from toy_env import arithmetic
from toy_env.arithmetic import Problem, reward
from toy_env.model import load_policy, pick_device
from toy_env.rollout import Rollout, completion_logps, sample
from toy_env.save import newest_save

SCRIPTS = {"GRPO": "grpo", "Dr. GRPO": "dr_grpo", "DAPO": "dapo"}
GROUP_SIZES = (2, 4, 8, 16, 32, 64)
KS = {  # right answers of G for which groups of a prompt are formed: all up to G = 8, then 1, 2, 4 ... from either end
    G: sorted({k for j in range(6) if 2**j < G for k in (2**j, G - 2**j)} | (set(range(1, G)) if G <= 8 else set()))
    for G in GROUP_SIZES
}
MOST_KS = max(len(ks) for ks in KS.values())
SUM, MEAN = 0, 1  # a response's token gradients added up (a score; Dr. GRPO, DAPO), or over their number (GRPO's loss)
UPDATES = (0, 1, 2, 3, 7, 11)  # of one rollout batch, four to a pass: where the loss is taken apart

# ---------------------------------------------------------------------- one prompt


@dataclass
class Pool:
    """Many answers to one prompt. U of them differ, and an answer is its index among these."""

    answers: np.ndarray  # (n,) the index of every answer, in the order in which they were drawn
    right: np.ndarray  # (U,) bool
    lengths: np.ndarray  # (U,) tokens, EOS included
    different: Rollout  # the U different answers, one row each
    scores: Tensor  # (U, parameters): gradient of the log-probability of each
    inner: np.ndarray  # (2, U, U) inner products of the scores, and of the scores over their lengths


def draw_pool(policy, tokenizer, problem: Problem, n: int, max_new_tokens: int, generator: torch.Generator) -> Pool:
    rollout = sample(
        policy,
        tokenizer,
        [problem.prompt],
        group_size=n,
        max_new_tokens=max_new_tokens,
        temperature=1.0,
        generator=generator,
    )
    first: dict[tuple[str, bool], int] = {}  # a text that was cut at the limit is another answer than one that ended
    rows = [
        first.setdefault((text, cut), i) for i, (text, cut) in enumerate(zip(rollout.texts, rollout.truncated.tolist()))
    ]
    index = {row: u for u, row in enumerate(first.values())}
    different = rollout[torch.tensor(list(first.values()), device=rollout.mask.device)]
    scores = torch.stack([score(policy, different, u) for u in range(len(different))])
    lengths = different.mask.sum(dim=1).cpu().numpy()
    inner = (scores.double() @ scores.double().T).cpu().numpy()
    return Pool(
        answers=np.array([index[row] for row in rows]),
        right=np.array([reward(problem, text) == 1 for text in different.texts]),
        lengths=lengths,
        different=different,
        scores=scores,
        inner=np.stack([inner, inner / np.outer(lengths, lengths)]),
    )


def score(policy, rollout: Rollout, row: int) -> Tensor:
    """(parameters,): the gradient of the log-probability of one answer, all its tokens and the EOS."""
    one = rollout[torch.tensor([row], device=rollout.mask.device)]
    total = completion_logps(policy, one, temperature=1.0).sum()
    return torch.cat([part.flatten() for part in torch.autograd.grad(total, list(policy.parameters()))])


def update_weights(pool: Pool, groups: np.ndarray, script: str) -> np.ndarray:
    """(M, U): what each group's update, the mean of advantage times score, takes of each different answer's score.

    groups: (M, G) answers. The advantages are the script's own.
    """
    R = torch.from_numpy(pool.right[groups].astype(float))
    A = import_module(f"algorithms.{script}").compute_advantages(rewards=R).numpy() / groups.shape[1]
    weights = np.zeros((len(groups), len(pool.right)))
    np.add.at(weights, (np.arange(len(groups))[:, None], groups), A)
    return weights


def lengths_of(weights: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """(M,): lengths of the vectors `weights @ scores`, from the inner products of the scores."""
    return np.sqrt(np.maximum((weights @ inner * weights).sum(axis=1), 0))


def class_weights(pool: Pool, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(U,) each: the mean over the right and over the wrong ones among `answers`; nan where there is none."""
    counts = np.bincount(answers, minlength=len(pool.right)).astype(float)
    with np.errstate(invalid="ignore"):
        return tuple(np.where(of, counts, 0.0) / counts[of].sum() for of in (pool.right, ~pool.right))


def effective_number(pool: Pool, right: bool) -> float:
    """How many different right (or wrong) answers there are, as if all were equally frequent: exp of their entropy."""
    counts = np.bincount(pool.answers, minlength=len(pool.right))[pool.right == right]
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else np.nan


def slope(policy, pool: Pool, weights: np.ndarray) -> tuple[float, float]:
    """What p does if the policy moves along the unit vector of `weights @ scores`: dp, found by moving it a little to
    either side and adding up the probabilities of the right answers that were seen; and these answers' share of all."""
    scores = torch.from_numpy(weights).to(pool.scores) @ pool.scores
    length = scores.norm()
    if length == 0:
        return np.nan, np.nan
    here, size = parameters_to_vector(policy.parameters()).detach(), 0.005 / length
    sides = []
    for sign in (1, -1, 0):
        with parameters_of(policy, here + sign * size * scores / length), torch.no_grad():
            logps = completion_logps(policy, pool.different, temperature=1.0).double().sum(dim=1)
        sides.append(logps.exp().cpu().numpy())
    return (sides[0] - sides[1])[pool.right].sum() / (2 * size.item()), sides[2].sum()


def measure_prompt(policy, pool: Pool, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """All numbers of one prompt at one step of training. The first half of the answers gives p and grad p, the second
    half the groups; nothing that is compared shares an answer."""
    half = len(pool.answers) // 2
    first, second = pool.answers[:half], pool.answers[half:]
    p = [pool.right[part].mean() for part in (first, second)]
    out = {
        "right": np.array([pool.right[part].sum() for part in (first, second)]),
        "different": np.array(len(pool.right)),
    }

    out["effective"] = np.array([effective_number(pool, of) for of in (True, False)])

    # grad p = E[(R - p) s], each half on its own; with its own mean for p it is (n - 1) / n of it
    gradients = [
        np.bincount(part, pool.right[part] - mean, len(pool.right)) / (len(part) - 1)
        for part, mean in zip((first, second), p)
    ]
    contrasts = [np.subtract(*class_weights(pool, part)) for part in (first, second)]
    right, wrong = class_weights(pool, pool.answers)
    n = np.array([pool.right[pool.answers].sum(), (~pool.right[pool.answers]).sum()])
    out["gradient_squared"], out["contrast_squared"], out["variances"] = np.zeros(3), np.zeros(2), np.zeros((2, 2))
    for kind, inner in enumerate(pool.inner):
        out["contrast_squared"][kind] = contrasts[0] @ inner @ contrasts[1]  # independent halves: no bias from noise
        for i, (mean, number) in enumerate(zip((right, wrong), n)):
            spread = mean @ np.diag(inner) - mean @ inner @ mean if number > 1 else np.nan
            out["variances"][kind, i] = spread * number / (number - 1) if number > 1 else np.nan
    a, b = gradients
    out["gradient_squared"][:] = [v @ pool.inner[SUM] @ w for v, w in ((a, b), (a, a), (b, b))]

    dp, seen = slope(policy, pool, b)
    expected = out["gradient_squared"][0] / np.sqrt(out["gradient_squared"][2]) if np.isfinite(dp) else np.nan
    out["slope"], out["seen"] = np.array([dp, expected]), np.array(seen)

    sizes = len(GROUP_SIZES)
    for name, shape in {
        "silent": (2,),
        "sigma": (2,),
        "plug_in": (),
        "norm": (3,),
        "norm_squared": (3,),
        "along": (2,),
        "cosine": (),
    }.items():
        out[name] = np.full((sizes, *shape), np.nan)
    out["same_prompt"] = np.full((sizes, 2, MOST_KS), np.nan)  # root mean square |g|, by kind
    gradient_length = np.sqrt(max(a @ pool.inner[SUM] @ a, 1e-300))
    for i, G in enumerate(GROUP_SIZES):
        if half < G:
            continue
        groups = second[: half // G * G].reshape(-1, G)
        k = pool.right[groups].sum(axis=1)
        mixed = (k > 0) & (k < G)
        sigma = identity.sigma(k, G)
        out["silent"][i] = (k == G).mean(), (k == 0).mean()
        out["sigma"][i] = sigma.mean(), (sigma**2).mean()
        out["plug_in"][i] = identity.silent_rate(k / G, G).mean()
        grpo, dr_grpo = (update_weights(pool, groups, script) for script in ("grpo", "dr_grpo"))
        norms = (
            lengths_of(grpo, pool.inner[SUM]),
            lengths_of(grpo, pool.inner[MEAN]),
            lengths_of(dr_grpo, pool.inner[SUM]),
        )
        out["norm"][i] = [norm.mean() for norm in norms]
        out["norm_squared"][i] = [(norm**2).mean() for norm in norms]
        if G == 8:  # number of groups with each k, and the sum of |g|^2 over them
            out["by_k"] = np.stack([np.bincount(k, weights=w, minlength=G + 1) for w in (k >= 0, norms[0] ** 2)])
        out["along"][i] = [weights.mean(axis=0) @ pool.inner[SUM] @ a for weights in (grpo, dr_grpo)]
        if mixed.any():
            products = np.maximum(norms[0][mixed], 1e-300) * gradient_length
            out["cosine"][i] = (grpo[mixed] @ pool.inner[SUM] @ a / products).mean()

        for j, k in enumerate(KS[G]):  # many groups of this prompt with k right answers, from all its answers
            pools = [pool.answers[pool.right[pool.answers] == of] for of in (True, False)]
            if len(pools[0]) < k or len(pools[1]) < G - k:
                continue
            picks = [part[rng.random((64, len(part))).argsort(axis=1)[:, :m]] for part, m in zip(pools, (k, G - k))]
            weights = update_weights(pool, np.concatenate(picks, axis=1), "grpo")
            for kind, inner in enumerate(pool.inner):
                out["same_prompt"][i, kind, j] = np.sqrt((lengths_of(weights, inner) ** 2).mean())
    return out


# ---------------------------------------------------------------------- the scripts' own loss


def loss_gradient(
    policy, script: str, config, rollout: Rollout, advantages: Tensor, old_logps=None, ref_logps=None
) -> Tensor:
    """(parameters,): minus the gradient of the script's policy_loss. Old and reference log-probabilities default to the
    present ones: every ratio is 1, and the KL term has no gradient."""
    logps = completion_logps(policy, rollout, config.temperature)
    batch = {"logps": logps, "old_logps": logps.detach() if old_logps is None else old_logps, "mask": rollout.mask}
    if script != "dapo":
        batch["ref_logps"] = logps.detach() if ref_logps is None else ref_logps
    loss = import_module(f"algorithms.{script}").policy_loss(**batch, advantages=advantages, config=config)
    return -torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


def identity_error(policy, pool: Pool, group: np.ndarray, script: str) -> float:
    """Relative difference of the two sides for one group: the gradient of the script's loss, and sigma (or its square)
    times the contrast of the scores, under the script's way to average over tokens."""
    config = import_module(f"algorithms.{script}").Config()
    rollout = pool.different[torch.from_numpy(group).to(pool.scores.device)]
    R = torch.from_numpy(pool.right[group]).to(pool.scores)
    advantages = import_module(f"algorithms.{script}").compute_advantages(
        rewards=(2 * R - 1 if script == "dapo" else R)[None]
    )
    left = loss_gradient(policy, script, config, rollout, advantages.view(-1, 1))
    lengths = torch.from_numpy(pool.lengths[group]).to(pool.scores)
    scores = pool.scores[torch.from_numpy(group).to(pool.scores.device)]
    k, G = int(R.sum()), len(group)
    if script == "grpo":
        scores, factor = scores / lengths[:, None], identity.sigma(k, G)
    elif script == "dr_grpo":
        factor = identity.sigma(k, G) ** 2 / config.max_new_tokens
    else:
        factor = identity.sigma(k, G) * G / lengths.sum().item()
    right = float(factor) * (scores[R == 1].mean(dim=0) - scores[R == 0].mean(dim=0))
    return ((left - right).norm() / right.norm()).item()


def identity_errors(policy, pools: list[Pool]) -> np.ndarray:
    """(scripts, group sizes): the largest relative error over one mixed group of each pool; nan where none is mixed."""
    errors = np.full((len(SCRIPTS), len(GROUP_SIZES)), np.nan)
    for pool in pools:
        for j, G in enumerate(GROUP_SIZES):
            groups = pool.answers[: len(pool.answers) // G * G].reshape(-1, G)
            k = pool.right[groups].sum(axis=1)
            for group in groups[(k > 0) & (k < G)][:1]:
                for i, script in enumerate(SCRIPTS.values()):
                    errors[i, j] = np.fmax(errors[i, j], identity_error(policy, pool, group, script))
    return errors


# ---------------------------------------------------------------------- later updates of one rollout batch


def next_batch(policy, tokenizer, script: str, config, rng: random.Random, generator) -> tuple[Rollout, Tensor, Tensor]:
    """A rollout batch as the script draws it, right or wrong (P, G), and the advantages (P, G)."""
    module = import_module(f"algorithms.{script}")
    run = SimpleNamespace(
        policy=policy, tokenizer=tokenizer, random=rng, generator=generator, device=policy.device, task=arithmetic
    )  # what `collect` takes of a run
    rollout, rewards = module.collect(run, config)
    if script != "dapo":
        return rollout, rewards, module.compute_advantages(rewards=rewards)
    P, G = rewards.shape
    most = config.max_draws * P
    while len(kept := module.groups_to_keep(correct=rewards, config=config)) < P and len(rewards) < most:
        more, more_rewards = module.collect(run, config)
        rollout, rewards = Rollout.concatenate([rollout, more]), torch.cat([rewards, more_rewards])
    rollout = rollout[torch.arange(len(rollout), device=policy.device).view(-1, G)[kept].flatten()]
    penalty = module.overlong_penalty(mask=rollout.mask, config=config).view(-1, G)
    return rollout, rewards[kept], module.compute_advantages(rewards=2 * rewards[kept] - 1 + penalty)


@contextlib.contextmanager
def parameters_of(policy, vector: Tensor) -> Iterator[None]:
    own = parameters_to_vector(policy.parameters()).detach()
    vector_to_parameters(vector, policy.parameters())
    yield
    vector_to_parameters(own, policy.parameters())


def later_updates(script: str, config, folder: Path, seed: int, groups: int = 8) -> tuple[dict[str, np.ndarray], str]:
    """The next rollout batch of a run, with its optimizer: what each of its updates leaves of the gradient at ratio 1.

    Before each update in UPDATES the gradient of the loss is compared with that at ratio 1, at the same parameters and
    on the same answers: with ratios alone, with the clip too, and with the rest of the script's loss (KL; DAPO's
    punishment of long answers). Returns, and one group token by token as JSON:

    minibatch: (updates, 3, 2) on the answers of this update's minibatch, which are rows of many groups: component along
        the gradient at ratio 1, and length of the rest, both over its length. In the first pass no update was made with
        them before
    group: (updates, 3, groups, 2) the same on whole mixed groups, most of whose answers were used before
    turned: (updates, groups) cosine between a group's gradient at ratio 1 now and at the policy that sampled
    clipped: (updates,) share of the minibatch's tokens with an advantage whose gradient the clip stops
    part: cosine between the gradients at ratio 1 of the first minibatch's answers and of the whole batch
    carried: (groups, 3) share of a group's update that its 5 % most important tokens carry; share of those tokens that
        the clip stops before the fourth update; and which part of all its tokens the stopped ones are
    places: (groups, 4) share of a group's update that is carried by first tokens, by the rest of the working, by the
        digits of the answer, and by # and the end of the answer
    """
    device = pick_device(config.device)
    policy, tokenizer = load_policy(str(folder / "checkpoint"), device)
    reference, _ = load_policy("base", device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    optimizer.load_state_dict(newest_save(folder, device)[0]["optimizer"])
    optimizer.param_groups[0]["lr"] = config.learning_rate
    generator = torch.Generator(device).manual_seed(seed)
    rollout, correct, A = next_batch(policy, tokenizer, script, config, random.Random(seed), generator)
    P, G = correct.shape
    with torch.no_grad():
        ref_logps = completion_logps(reference, rollout, config.temperature)
    k = correct.sum(dim=1)
    chosen = ((k > 0) & (k < G)).nonzero().flatten()[:groups].tolist()
    rows_of = {g: torch.arange(g * G, (g + 1) * G, device=device) for g in chosen}
    plain = import_module(f"algorithms.{script}").compute_advantages(rewards=correct)
    unclipped = {"clip_eps_low": 1e9, "clip_eps_high": 1e9} if script == "dapo" else {"clip_eps": 1e9}
    without_kl = config if script == "dapo" else replace(config, kl_coef=0.0)
    losses = ((replace(without_kl, **unclipped), plain), (without_kl, plain), (config, A))

    def on_policy(rows: Tensor) -> Tensor:
        """The gradient at ratio 1, here and now, with a KL term without gradient."""
        return loss_gradient(policy, script, config, rollout[rows], plain.view(-1, 1)[rows])

    def of_loss(rows: Tensor, settings, advantages: Tensor) -> Tensor:
        batch = rollout[rows], advantages.view(-1, 1)[rows], rollout.logps[rows], ref_logps[rows]
        return loss_gradient(policy, script, settings, *batch)

    def taken_apart(rows: Tensor, expected: Tensor) -> list[tuple[float, float]]:
        length, parts = expected.norm(), []
        for settings, advantages in losses:
            found = of_loss(rows, settings, advantages)
            along = found @ expected / length**2
            parts.append((along.item(), ((found - along * expected).norm() / length).item()))
        return parts

    out = {
        "minibatch": np.full((len(UPDATES), 3, 2), np.nan),
        "group": np.full((len(UPDATES), 3, groups, 2), np.nan),
        "turned": np.full((len(UPDATES), groups), np.nan),
        "clipped": np.full(len(UPDATES), np.nan),
        "carried": np.full((groups, 3), np.nan),
        "places": np.full((groups, 4), np.nan),
    }
    tokens = ""
    at_sampling = {g: on_policy(rows) for g, rows in rows_of.items()}
    shares = {g: token_shares(policy, script, without_kl, rollout[rows], plain[g]) for g, rows in rows_of.items()}
    permutations = [torch.randperm(len(rollout), generator=generator, device=device).tensor_split(4) for _ in range(3)]
    for number, minibatch in enumerate(part for permutation in permutations for part in permutation):
        if number in UPDATES:
            i = UPDATES.index(number)
            expected = on_policy(minibatch)
            if expected.any():
                out["minibatch"][i] = taken_apart(minibatch, expected)
            if number == 0:
                everything = on_policy(torch.arange(len(rollout), device=device))
                out["part"] = np.array(torch.cosine_similarity(expected, everything, dim=0).item())
            with torch.no_grad():
                logps = completion_logps(policy, rollout, config.temperature)
            stopped = clipped(script, config, logps, rollout, plain)
            counted = (rollout.mask & (plain.view(-1, 1) != 0))[minibatch]
            out["clipped"][i] = (stopped[minibatch].sum() / counted.sum().clamp(min=1)).item()
            for j, (g, rows) in enumerate(rows_of.items()):
                expected = on_policy(rows)
                out["turned"][i, j] = torch.cosine_similarity(expected, at_sampling[g], dim=0).item()
                out["group"][i, :, j] = np.array(taken_apart(rows, expected))
                if number == 3:
                    of_group = shares[g][rollout.mask[rows]].sort(descending=True).values
                    most = of_group[: -(-len(of_group) // 20)].sum().item()
                    share = shares[g][stopped[rows]].sum().item()
                    kinds = places(tokenizer, rollout[rows])
                    out["places"][j] = [shares[g][kinds == kind].sum().item() for kind in range(4)]
                    out["carried"][j] = most, share, stopped[rows].sum().item() / len(of_group)
            if number == 3 and chosen:
                g = max(chosen, key=lambda g: -abs(k[g].item() - G / 2))
                rows = rows_of[g]
                tokens = token_view(tokenizer, rollout[rows], plain[g], shares[g], logps[rows], stopped[rows])
        update(policy, optimizer, of_loss(minibatch, config, A), config)
    return out, tokens


def update(policy, optimizer, step: Tensor, config) -> None:
    """The script's optimizer step along `step`, minus the gradient, (parameters,)."""
    sizes = [parameter.numel() for parameter in policy.parameters()]
    for parameter, part in zip(policy.parameters(), step.split(sizes)):
        parameter.grad = -part.view_as(parameter)
    torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
    optimizer.step()


def clipped(script: str, config, logps: Tensor, rollout: Rollout, A: Tensor) -> Tensor:
    """(B, T) bool: tokens whose gradient the clip stops."""
    low, high = (config.clip_eps_low, config.clip_eps_high) if script == "dapo" else (config.clip_eps, config.clip_eps)
    ratio, A = (logps - rollout.logps).exp(), A.view(-1, 1)
    return rollout.mask & ((A > 0) & (ratio > 1 + high) | (A < 0) & (ratio < 1 - low))


def token_shares(policy, script: str, config, group: Rollout, A: Tensor) -> Tensor:
    """(G, T): each token's share of the group's on-policy update g: its term of g along g, over |g|^2. They sum to 1.

    How fast a token's log-probability changes along g is read off two policies, a little to either side of this one.
    """
    policy = to_float64(copy.deepcopy(policy))
    advantages = A.view(-1, 1).double()
    update = loss_gradient(policy, script, config, group, advantages)
    logps = completion_logps(policy, group, config.temperature).detach().requires_grad_()
    batch = {"logps": logps, "old_logps": logps.detach(), "mask": group.mask, "advantages": advantages}
    if script != "dapo":
        batch["ref_logps"] = logps.detach()
    loss = import_module(f"algorithms.{script}").policy_loss(**batch, config=config)
    coefficients = -torch.autograd.grad(loss, logps)[0]  # what every token's log-probability is multiplied with
    here, size, sides = parameters_to_vector(policy.parameters()).detach(), 1e-5 / update.norm(), []
    for sign in (1, -1):
        with parameters_of(policy, here + sign * size * update), torch.no_grad():
            sides.append(completion_logps(policy, group, config.temperature))
    return coefficients * (sides[0] - sides[1]) / (2 * size) / update.square().sum()


def places(tokenizer, group: Rollout) -> Tensor:
    """(G, T): 0 for a first token, 1 for the rest of the working, 2 for digits of the answer, 3 for # and EOS, -1 off
    the mask. A response without # is all working."""
    kinds = torch.full(group.mask.shape, -1, device=group.mask.device)
    mark = tokenizer.convert_tokens_to_ids("#")
    for i, ids in enumerate(group.completion_ids.tolist()):
        n = int(group.mask[i].sum())
        last = max((t for t in range(n) if ids[t] == mark), default=n)
        for t in range(n):
            ends = ids[t] in (mark, tokenizer.eos_token_id)
            kinds[i, t] = 0 if t == 0 else 3 if ends else 2 if t > last else 1
    return kinds


def token_view(tokenizer, group: Rollout, A: Tensor, shares: Tensor, logps: Tensor, stopped: Tensor) -> str:
    """One group as JSON: of each token the log-probability when sampled and now, its share of the group's first update,
    and whether the clip stops it now."""
    answers = [
        [
            {
                "token": tokenizer.decode([token]) if token != tokenizer.eos_token_id else "EOS",
                "logp_old": round(group.logps[i, t].item(), 4),
                "logp": round(logps[i, t].item(), 4),
                "share": round(shares[i, t].item(), 6),
                "clipped": bool(stopped[i, t]),
            }
            for t, token in enumerate(group.completion_ids[i, : int(group.mask[i].sum())].tolist())
        ]
        for i in range(len(group))
    ]
    prompt = tokenizer.decode(group.prompt_ids[0][group.prompt_mask[0]], skip_special_tokens=True)
    return json.dumps({"prompt": prompt, "advantages": [round(a, 4) for a in A.tolist()], "answers": answers})
