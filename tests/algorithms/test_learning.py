"""They learn, in runs of a minute: from below .5 by .15, and outside the 95 % intervals.

test_every_script.py sees in two steps that every script learns, and test_run.py that a run of four
steps reports it.
"""

import json
from importlib import import_module

import pytest
from conftest import SCRIPTS

EXPRESSIONS = {"grpo": 30, "reinforce": 60, "ppo": 16, "dr_grpo": 30, "dapo": 30}
RUNS = [("arithmetic", script, 12) for script in SCRIPTS]
RUNS += [("expressions", *run) for run in EXPRESSIONS.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "script", "steps"), RUNS)
def test_learns(task, script, steps, train, tmp_path):
    script = import_module(f"algorithms.{script}")
    sizes = {"prompts_per_step": 16, "group_size": 8, "max_new_tokens": 56, "eval_problems": 32}
    train(script, task=task, steps=steps, warmup_steps=4, eval_every=0, **sizes)
    results = json.loads((tmp_path / "run/results.json").read_text("utf-8"))
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    assert before["sampled"] < 0.5
    assert after["sampled"] > before["sampled"] + 0.15
    assert after["sampled_interval"][0] > before["sampled_interval"][1]
