"""They learn: each script, from the shipped base, in a short seeded run on CPU."""

import json

import pytest

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo

SLOW = [(reinforce, 40, 0), (ppo, 16, 0), (dr_grpo, 16, 0), (dapo, 12, 0)]
SLOW += [(script, 12, seed) for script in (rloo, maxrl, gspo, cispo) for seed in (0, 1)]


@pytest.mark.parametrize(
    ("script", "steps", "seed"),
    [(grpo, 12, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_learns(script, steps, seed, train, tmp_path):
    """Held-out accuracy below .5 before, and clearly above it after: by .15, and outside the 95 %
    intervals."""
    learns(script, "arithmetic", steps, seed, train, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "steps"), [(grpo, 30), (reinforce, 60), (ppo, 16), (dr_grpo, 30), (dapo, 30)]
)
def test_learns_the_second_task(script, steps, train, tmp_path):
    learns(script, "expressions", steps, 0, train, tmp_path)


def learns(script, task, steps, seed, train, tmp_path):
    train(script, task=task, steps=steps, seed=seed, prompts_per_step=16, group_size=8, warmup_steps=4,
          eval_problems=32, eval_every=0)  # fmt: skip
    results = json.loads((tmp_path / "run/results.json").read_text("utf-8"))
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    assert before["sampled"] < 0.5
    assert after["sampled"] > before["sampled"] + 0.15
    assert after["sampled_interval"][0] > before["sampled_interval"][1]
