"""They learn: each script, from the shipped base, in a short seeded run on CPU."""

import pytest

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo


@pytest.mark.parametrize(
    ("script", "steps", "seed"),
    [
        (grpo, 12, 0),
        pytest.param(reinforce, 40, 0, marks=pytest.mark.slow),
        pytest.param(ppo, 16, 0, marks=pytest.mark.slow),
        pytest.param(dr_grpo, 16, 0, marks=pytest.mark.slow),
        pytest.param(dapo, 12, 0, marks=pytest.mark.slow),
        *(
            pytest.param(script, 12, seed, marks=pytest.mark.slow)
            for script in (rloo, maxrl, gspo, cispo)
            for seed in (0, 1)
        ),
    ],
)
def test_learns(script, steps, seed, tmp_path, no_curves):
    """Held-out accuracy below .5 before, and clearly above it after: by .15, and outside the 95 % intervals."""
    learns(script, "arithmetic", steps, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "steps"), [(grpo, 30), (reinforce, 60), (ppo, 16), (dr_grpo, 30), (dapo, 30)])
def test_learns_the_second_task(script, steps, tmp_path, no_curves):
    learns(script, "expressions", steps, 0, tmp_path)


def learns(script, task, steps, seed, tmp_path):
    config = script.Config(
        task=task,
        steps=steps,
        seed=seed,
        prompts_per_step=16,
        group_size=8,
        warmup_steps=4,
        eval_problems=32,
        eval_every=0,
        device="cpu",
        run_dir=str(tmp_path / "run"),
    )
    results = script.train(config)
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    assert before["sampled"] < 0.5
    assert after["sampled"] > before["sampled"] + 0.15
    assert after["sampled_interval"][0] > before["sampled_interval"][1]
