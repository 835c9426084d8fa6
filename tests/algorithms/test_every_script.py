"""What every script promises a user, seen in one short run of each: it learns, it can be resumed,
it obeys its settings, and its log says what was done.

A script is any module of algorithms with a Config(RunConfig): a new rung is tested by being there.
"""

import shutil
from dataclasses import replace
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import SCRIPTS, is_right, metrics, watch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from toy_env.rollout import completion_logps
from toy_env.run import Run

STEPS, LEVEL = 2, 2
SHORT = {"steps": STEPS, "levels": (LEVEL,), "prompts_per_step": 8, "group_size": 8}
SHORT |= {"max_new_tokens": 24, "epochs": 2, "num_minibatches": 2, "warmup_steps": 1}
SHORT |= {"learning_rate": 5e-4, "critic_learning_rate": 1e-3, "max_grad_norm": 1e-3}
SHORT |= {"max_ratio": 1.05, "overlong_buffer": 0}
SHORT |= {"eval_problems": 1, "eval_every": 0, "save_every": 1, "device": "cpu"}


@pytest.fixture(scope="module", params=SCRIPTS)
def run(request, tmp_path_factory):
    """A short run of each script, and what was seen of it on the way: calls, batches, and for every
    update the learning rate and the gradient norm of each group of parameters. The folder `killed`
    is that of the run as it was after step 1."""
    script, folder = import_module(f"algorithms.{request.param}"), tmp_path_factory.mktemp("runs")
    settings = {name: value for name, value in SHORT.items() if hasattr(script.Config, name)}
    config = script.Config(**settings, run_dir=str(folder / "whole"))
    seen = SimpleNamespace(script=script, config=config, killed=folder / "killed")
    seen.updates, seen.batches, log, save = [], [], Run.log, Run.save

    def see_update(optimizer, *_) -> None:
        groups = optimizer.param_groups
        norms = [torch.nn.utils.get_total_norm([p.grad for p in g["params"]]) for g in groups]
        seen.updates.append([(g["lr"], norm.item()) for g, norm in zip(groups, norms)])

    def see_batch(run, step, rollout, rewards) -> None:
        seen.policy = run.policy
        batch = {"rollout": rollout, "rewards": rewards, "recorded": run.recorded}
        seen.batches.append(SimpleNamespace(**batch))
        log(run, step, rollout, rewards)

    def save_and_copy(run) -> None:
        save(run)
        if not seen.killed.exists():
            shutil.copytree(run.path, seen.killed)

    hook = register_optimizer_step_pre_hook(see_update)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toy_env.run.draw_curves", lambda *_: None)
        patch.setattr(Run, "log", see_batch)
        patch.setattr(Run, "save", save_and_copy)
        seen.samples, passes = (watch(patch, script, n) for n in ("sample", "completion_logps"))
        seen.losses = watch(patch, script, "policy_loss")
        seen.metrics = watch(patch, script, "update_metrics") if hasattr(config, "epochs") else []
        seen.results = script.train(config)
    hook.remove()
    seen.trained = [call.args[1] for call in passes if call.result.requires_grad]  # minibatches
    seen.rows = metrics(folder / "whole")
    return seen


def test_it_learns(run):
    """After two steps the right completions of both batches have become likelier than the wrong
    ones, by .3 nats or more; seeds 0 to 3 of the ten scripts reach .6 to 5.1. Broken on purpose:
    the sign of the loss."""
    for batch in run.batches:
        with torch.no_grad():
            logps = completion_logps(run.policy, batch.rollout, 1.0)
        gain, right = (logps - batch.rollout.old_logps).sum(dim=1), batch.rewards.flatten() == 1
        assert gain[right].mean() - gain[~right].mean() > 0.3


def test_a_resumed_run_ends_like_one_that_was_not_interrupted(run, no_curves):
    """Killed after step 1, it has the same metrics, reports and weights in the end, bit for bit. KL
    is measured from the base, not from the policy that the resumed run begins with. Broken on
    purpose: a reference taken after the save is loaded, a save without the optimizer."""
    results = run.script.train(replace(run.config, run_dir=str(run.killed), resume=True))
    assert metrics(run.killed) == run.rows
    assert results == run.results
    ours, theirs = (
        Path(folder, "checkpoint/model.safetensors").read_bytes()
        for folder in (run.killed, run.config.run_dir)
    )
    assert ours == theirs


def test_the_learning_rate_warms_up(run):
    """With --warmup_steps 1 the first step has half of --learning_rate and the second all of it; so
    has the critic, of its own rate. Broken on purpose: no warm-up in rloo, the critic at the
    policy's rate."""
    rates = run.config.learning_rate, getattr(run.config, "critic_learning_rate", None)
    for update, groups in enumerate(run.updates):
        share = 0.5 if update < len(run.updates) / STEPS else 1
        for (rate, _), whole in zip(groups, rates):
            assert rate == pytest.approx(share * whole)


def test_max_grad_norm_is_obeyed(run):
    """The optimizer gets no longer gradient than --max_grad_norm. `grad_norm` in the log is the
    length before it was cut. Broken on purpose: gspo ignores --max_grad_norm."""
    limit = run.config.max_grad_norm
    assert max(norm for groups in run.updates for _, norm in groups) < 1.001 * limit
    assert all(row["grad_norm"] > 2 * limit for row in run.rows)


def test_every_step_has_new_problems_of_the_levels(run, tokenizer):
    """All have as many operations as --levels says, and none comes up in both steps. Broken on
    purpose: --levels ignored, one seed for all steps."""
    prompts = []
    for batch in run.batches:
        texts = tokenizer.batch_decode(batch.rollout.prompt_ids, skip_special_tokens=True)
        prompts.append(set(texts))
        assert {sum(map(text.count, "+-")) for text in texts} == {LEVEL}
    assert not prompts[0] & prompts[1]


def test_every_epoch_has_its_own_order(run):
    """An epoch trains on every row once; no two have the rows in the same order, nor in that of
    sampling. Broken on purpose: one order for all epochs."""
    updates, epochs = len(run.trained) // STEPS, getattr(run.config, "epochs", 1)
    for step, batch in enumerate(run.batches):
        parts = run.trained[step * updates : (step + 1) * updates]
        rows = torch.cat([part.old_logps.sum(dim=1) for part in parts]).view(epochs, -1)
        assert rows.shape[1] == 64
        assert all(torch.equal(row.sort().values, rows[0].sort().values) for row in rows)
        orders = [*rows, batch.rollout.old_logps.sum(dim=1)[:64]]
        same_order = any(torch.equal(*pair) for pair in pairwise(orders))
        assert epochs == 1 or not same_order, "two epochs have one order"


def test_advantages_meet_their_rows(run, tokenizer):
    """A reward is 1 where the row's text answers the row's prompt. In every minibatch the advantage
    is above 0 for such a row, below 0 for another, and 0 in silent groups; in REINFORCE it is the
    reward. For PPO, whose critic judges tokens, see test_ppo.py. Broken on purpose: rewards or
    advantages of other rows."""

    def judged(rollout) -> list[tuple[str, bool]]:
        prompts = tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)
        return [(prompt, is_right(prompt, text)) for prompt, text in zip(prompts, rollout.texts)]

    name, groups = run.script.__name__.removeprefix("algorithms."), {}
    for batch in run.batches:
        rows = judged(batch.rollout)
        assert batch.rewards.flatten().tolist() == [right for _, right in rows]
        for prompt, right in rows:
            groups.setdefault(prompt, set()).add(right)
    if name == "ppo":
        return
    for minibatch, inputs in zip(run.trained, run.losses, strict=True):
        signs = inputs.advantages.sign().flatten().tolist()
        for (prompt, right), sign in zip(judged(minibatch), signs, strict=True):
            mixed = len(groups[prompt]) == 2
            assert sign == (right if name == "reinforce" else mixed * (1 if right else -1))


def test_the_log_counts_what_was_sampled(run):
    """`completions` are all that were drawn since the start, those that dynamic sampling discards
    too. Broken on purpose: steps counted for completions, dapo logging what it keeps."""
    drawn = [len(batch.rollout) for batch in run.batches]
    assert sum(drawn) == sum(len(call.result) for call in run.samples)
    assert [row["completions"] for row in run.rows] == list(accumulate(drawn))
    assert [row["step"] for row in run.rows] == [1, 2]


def test_a_row_of_the_log_sums_up_its_updates(run):
    """It has the mean over the updates; of `ratio_deviation` the largest, and of `mismatch` the
    first, which is rounding, in every step. Broken on purpose: sampling from the policy as it was
    at the start."""
    for row, batch in zip(run.rows, run.batches):
        for name, values in batch.recorded.items():
            expected = sum(values) / len(values)
            if name == "mismatch":
                expected = values[0]
                assert expected < 1e-5
            if name == "ratio_deviation":
                expected = max(values)
                assert values[0] < 1e-4 < 0.01 < expected
            assert row[name] == pytest.approx(expected, rel=1e-6), name


def test_the_log_counts_what_the_clip_stopped(run):
    """The tokens of each minibatch that this script's clip stops are counted again. In GSPO a
    clipped completion counts with all its tokens; CISPO caps weights upwards only. Broken on
    purpose: the two ends exchanged in dapo, gspo counting tokens by their own ratio."""
    eps, ups = getattr(run.config, "clip_eps", 1), 0
    low = 1 - getattr(run.config, "clip_eps_low", eps)
    high = getattr(run.config, "max_ratio", 1 + getattr(run.config, "clip_eps_high", eps))
    for inputs, call in zip(run.losses, run.metrics):
        columns = {name: getattr(inputs, name) for name in ("logps", "old_logps", "mask")}
        ratio = (inputs.logps - inputs.old_logps).exp()
        if hasattr(run.script, "sequence_ratio"):
            ratio = run.script.sequence_ratio(**columns).expand_as(ratio)
        up = (inputs.advantages > 0) & (ratio > high) & inputs.mask
        down = (inputs.advantages < 0) & (ratio < low) & inputs.mask
        for name, stopped in (("clipped_up", up), ("clipped_down", down)):
            share = stopped.sum() / inputs.mask.sum()
            assert call.result[name].item() == pytest.approx(share.item(), abs=1e-5), name
        ups += up.sum()
    assert ups > 0 or not run.metrics
