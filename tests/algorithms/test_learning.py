"""They learn: each script, in a short seeded run on the CPU."""

import json

import pytest

from algorithms import batch_sigma, cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo

# Held-out accuracy after 12 steps on two operations, from .45. Seeds 0 to 3 ended at least .05
# above; tests/README.md lists the bugs that end below.
REACHED = {reinforce: 0.65, ppo: 0.70, grpo: 0.72, dr_grpo: 0.77, dapo: 0.79}


@pytest.fixture
def accuracy(train, tmp_path):
    """accuracy(script, **settings) trains it and returns its accuracies before and after."""

    def run(script, **settings) -> tuple[dict, dict]:
        sizes = {"prompts_per_step": 16, "group_size": 8, "warmup_steps": 4, "eval_every": 0}
        sizes["max_new_tokens"] = script.Config.max_new_tokens
        train(script, **sizes | settings)
        results = json.loads((tmp_path / "run/results.json").read_text("utf-8"))
        return tuple(results[when]["accuracy"]["all"] for when in ("before", "after"))

    return run


@pytest.mark.parametrize("script", REACHED)
def test_learns(script, accuracy):
    before, after = accuracy(script, steps=12, levels=(2,), eval_problems=64)
    assert before["sampled"] < 0.5 and after["sampled"] > REACHED[script]


SECOND_TASK = [(grpo, 30), (reinforce, 60), (ppo, 16), (dr_grpo, 30), (dapo, 30)]
SLOW = [("arithmetic", script, 12) for script in (rloo, maxrl, batch_sigma, gspo, cispo)]
SLOW += [("expressions", *pair) for pair in SECOND_TASK]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "script", "steps"), SLOW)
def test_learns_all_levels(task, script, steps, accuracy):
    """From below .5 by .15, and outside the 95 % intervals."""
    before, after = accuracy(script, task=task, steps=steps, eval_problems=32)
    assert before["sampled"] < 0.5
    assert after["sampled"] > before["sampled"] + 0.15
    assert after["sampled_interval"][0] > before["sampled_interval"][1]
