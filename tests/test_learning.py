"""They learn: each script, from the shipped base, in a short seeded run on CPU."""

import pytest

from algorithms import dapo, dr_grpo, grpo, ppo, reinforce


@pytest.mark.parametrize(("script", "steps"), [(reinforce, 40), (ppo, 16), (grpo, 16), (dr_grpo, 16), (dapo, 12)])
def test_learns(script, steps, tmp_path):
    """Held-out accuracy below .5 before, and clearly above it after: by .15, and outside the 95 % intervals."""
    config = script.Config(
        steps=steps, prompts_per_step=16, group_size=8, warmup_steps=4, eval_problems=32, device="cpu",
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    results = script.train(config)
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    assert before["sampled"] < 0.5
    assert after["sampled"] > before["sampled"] + 0.15
    assert after["sampled_interval"][0] > before["sampled_interval"][1]
