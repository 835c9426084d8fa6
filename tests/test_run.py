"""A run as its user meets it: files, determinism, resuming, Ctrl-C, and bad input answered in one
line."""

import importlib
import json
import math
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from conftest import metrics
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from algorithms import dapo, grpo, ppo, reinforce
from toy_env.metrics import rollout_metrics, update_metrics
from toy_env.model import BASE_MODEL
from toy_env.rollout import Rollout
from toy_env.run import Run
from toy_env.save import saves, step_of

ROOT = Path(__file__).parent.parent
SIDE_RUNGS = ("rloo", "maxrl", "gspo", "cispo")
SMALL = {
    "steps": 4,
    "prompts_per_step": 4,
    "group_size": 4,
    "max_new_tokens": 24,
    "eval_problems": 2,
    "device": "cpu",
}
FLAGS = [f"--{name}={value}" for name, value in SMALL.items()]


def train(folder, **settings):
    return reinforce.train(reinforce.Config(**(SMALL | {"run_dir": str(folder)} | settings)))


def weights(folder) -> torch.Tensor:
    policy = AutoModelForCausalLM.from_pretrained(Path(folder) / "checkpoint")
    return torch.cat([p.flatten() for p in policy.parameters()])


def test_a_run_folder_holds_what_the_readme_says(tmp_path):
    results = train(tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "config.json", "metrics.jsonl", "results.json", "samples.txt", "curves.png", "checkpoint", "lock",
        *(path.name for path in saves(tmp_path / "a")),
    }  # fmt: skip
    assert [step_of(path) for path in saves(tmp_path / "a")] == [4, 0]
    assert json.loads((tmp_path / "a/results.json").read_text("utf-8")) == json.loads(
        json.dumps(results)
    )
    config = json.loads((tmp_path / "a/config.json").read_text("utf-8"))
    assert (
        config["script"] == "reinforce"
        and config["prompts_per_step"] == 4
        and config["learning_rate"] > 0
    )
    rows = metrics(tmp_path / "a")
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and [row["rollouts"] for row in rows] == [
        16,
        32,
        48,
        64,
    ]
    assert [row["sampled"] for row in rows] == [16] * 4
    assert (tmp_path / "a/curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a/samples.txt").read_text("utf-8").count("?") == 16
    assert AutoTokenizer.from_pretrained(tmp_path / "a/checkpoint")("1+1?").input_ids[0] == 1


def test_evaluating_along_the_way_changes_nothing_else(tmp_path, no_curves):
    results = train(tmp_path / "two", eval_every=2)
    train(tmp_path / "none", eval_every=0)
    rows = metrics(tmp_path / "two")
    held_out = [row["held_out"] for row in rows]
    assert [value is None for value in held_out] == [True, False, True, False]
    assert held_out[-1] == results["after"]["accuracy"]["all"]["sampled"]
    assert [row | {"held_out": None} for row in rows] == metrics(tmp_path / "none")


def test_the_length_of_an_update_is_how_far_the_weights_moved(tmp_path, no_curves):
    """And measuring it, which only --measure_updates does, changes nothing else."""
    train(tmp_path / "a", steps=1, learning_rate=1e-3, measure_updates=True)
    base = torch.cat(
        [p.flatten() for p in AutoModelForCausalLM.from_pretrained(BASE_MODEL).parameters()]
    )
    moved = (weights(tmp_path / "a") - base).norm().item()
    (row,) = metrics(tmp_path / "a")
    assert row.pop("update_norm") == pytest.approx(moved, rel=1e-4) and moved > 0
    train(tmp_path / "b", steps=1, learning_rate=1e-3)
    assert metrics(tmp_path / "b") == [row]


def test_a_row_holds_the_mean_of_its_updates_and_the_largest_ratio_deviation(
    tmp_path, monkeypatch, no_curves
):
    """Against what every optimizer step recorded. Three steps a batch: the ratio moves away from 1
    update by update."""
    recorded = []
    honest = Run.record

    def see(run, **values) -> None:
        recorded.append({name: value.item() for name, value in values.items()})
        honest(run, **values)

    monkeypatch.setattr(Run, "record", see)
    settings = SMALL | {"steps": 2, "prompts_per_step": 6, "learning_rate": 1e-3, "warmup_steps": 0}
    grpo.train(grpo.Config(**settings, num_minibatches=3, run_dir=str(tmp_path / "run")))
    assert (
        len(recorded) == 2 * 3 * 2
    )  # in two steps of three updates: loss and norm, then the metrics
    for row, calls in zip(metrics(tmp_path / "run"), (recorded[:6], recorded[6:])):
        for name in {name for values in calls for name in values}:
            values = [call[name] for call in calls if name in call]
            expected = {"ratio_deviation": max(values), "mismatch": values[0]}.get(
                name, sum(values) / len(values)
            )
            assert row[name] == pytest.approx(expected, rel=1e-6), name
        assert row["mismatch"] < 1e-5
        deviations = [values["ratio_deviation"] for values in calls if "ratio_deviation" in values]
        assert deviations[0] < 1e-4 < 0.01 < row["ratio_deviation"] == max(deviations)


def test_same_seed_same_metrics_bit_for_bit(tmp_path, no_curves):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tmp_path / name, seed=seed, steps=2)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "c"))


@pytest.mark.parametrize(
    "script", [ppo, *(pytest.param(script, marks=pytest.mark.slow) for script in (reinforce, dapo))]
)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(script, tmp_path, no_curves):
    """Same rows, same weights, bit for bit, also when the last save lies two steps back."""

    def train(folder, **settings):
        return script.train(script.Config(**(SMALL | {"run_dir": str(folder)} | settings)))

    train(tmp_path / "whole", steps=4)
    train(tmp_path / "parts", steps=2)
    with (tmp_path / "parts/metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "from": "after the save, to be done again"}\n{"step": 4, "cut sh')
    train(tmp_path / "parts", steps=4, resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    whole, parts = (
        json.loads((tmp_path / name / "results.json").read_text("utf-8"))
        for name in ("whole", "parts")
    )
    assert whole == parts


def test_no_run_overwrites_another(tmp_path, monkeypatch, no_curves):
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        reinforce.train(reinforce.Config(**(SMALL | {"steps": 1, "seed": 5})))
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "reinforce-5",
        "reinforce-5-2",
        "reinforce-5-3",
    ]


GROUPS_OF_2 = "--group_size must be 2 or more, not 1"
BAD = [  # script, command line, answer
    (
        "reinforce",
        "--model=no/such-model",
        "model 'no/such-model' is neither a local folder nor available",
    ),
    ("reinforce", "--model=.", "cannot load a causal language model from '.': "),
    ("reinforce", "--learning_rate=-1e-4", "--learning_rate must be above 0, not -0.0001"),
    ("reinforce", "--learning_rate=nan", "--learning_rate must be finite, not nan"),
    ("reinforce", "--group_size=0", "--group_size must be 1 or more, not 0"),
    ("reinforce", "--temperature=0", "--temperature must be 0.001 or more, not 0"),
    (
        "reinforce",
        f"--seed={2**63}",
        "--seed must be 9223372036854775807 or less, not 9223372036854775808",
    ),
    (
        "reinforce",
        "--max_new_tokens=1000000000",
        "--prompts_per_step x --group_size x --max_new_tokens must be 2147",
    ),
    (
        "reinforce",
        "--max_new_tokens=200",
        "a prompt of 16 tokens and a completion of 200 (--max_new_tokens) need 216",
    ),
    (
        "reinforce",
        "--task algebra",
        "there is no task 'algebra'; choose arithmetic or expressions, or a module",
    ),
    (
        "reinforce",
        "--task run",
        "'run' is no task: it has no LEVELS; see toy_env/README.md, A task of your own",
    ),
    (
        "reinforce",
        "--task expressions --levels 2",
        "--levels: level 2 does not exist; choose from 1",
    ),
    ("reinforce", "--levels 1 1", "--levels: level 1 is given twice; choose from 1 2 3 4"),
    ("reinforce", "--dtype=float16", "--dtype must be float32 or bfloat16, not 'float16'"),
    (
        "reinforce",
        "--device=gpu",
        "device 'gpu' is not available here; choose auto, cpu, cuda or mps",
    ),
    ("reinforce", "--run_dir=/dev/null/run", "cannot use the run folder '/dev/null/run'"),
    ("reinforce", "--run_dir=/dev", "run folder '/dev' exists and no run overwrites another"),
    ("reinforce", "--resume", "--resume needs the run to continue; add --run_dir"),
    *(
        (script, "--group_size=1", GROUPS_OF_2)
        for script in ("grpo", "dr_grpo", "dapo", *SIDE_RUNGS)
    ),
    ("ppo", "--value_clip=0", "--value_clip must be above 0, not 0.0"),
    ("ppo", "--critic_learning_rate=0", "--critic_learning_rate must be above 0, not 0.0"),
    ("ppo", "--gae_lambda=1.1", "--gae_lambda must be 1 or less, not 1.1"),
    ("grpo", "--kl_coef=-1", "--kl_coef must be 0 or more, not -1.0"),
    ("rloo", "--clip_eps=0", "--clip_eps must be above 0, not 0.0"),
    ("gspo", "--clip_eps_low=-1", "--clip_eps_low must be above 0, not -1.0"),
    (
        "dapo",
        "--overlong_buffer=25",
        "--overlong_buffer must be 24 (max_new_tokens) or less, not 25",
    ),
    ("cispo", "--max_ratio=0", "--max_ratio must be above 0, not 0.0"),
]


def exit_of(script: str, monkeypatch, *argv: str) -> int | str | None:
    """The exit code of a script's `main` under this command line."""
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *argv])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"algorithms.{script}").main()
    return stop.value.code


@pytest.mark.parametrize(("script", "argv", "message"), BAD)
def test_bad_input_gets_one_clear_line_and_leaves_nothing_behind(
    script, argv, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert exit_of(script, monkeypatch, *FLAGS, *argv.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {message}") and err.count("\n") == 1 and not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "argv", "message"),
    [
        ("reinforce", ["--stepz", "5"], "Perhaps you meant: --steps INT"),
        ("dapo", ["--no_dynamic_samplin"], "Perhaps you meant: --no_dynamic_sampling"),
        (
            "grpo",
            ["--gae_lambda=1"],
            "Unrecognized options: --gae_lambda=1",
        ),  # a flag of another script
        ("reinforce", ["extra"], "Unrecognized options: extra"),
        (
            "reinforce",
            ["--steps=ten"],
            "Error parsing --steps: invalid literal for int() with base 10: 'ten'",
        ),
    ],
)
def test_a_command_line_that_cannot_be_read(script, argv, message, tmp_path, monkeypatch, capsys):
    """Said on standard error, with the flag that was meant where one comes close; nothing is
    run."""
    monkeypatch.chdir(tmp_path)
    assert exit_of(script, monkeypatch, *FLAGS, *argv) == 2
    out, err = capsys.readouterr()
    assert message in " ".join(re.sub("[│╭╮╰╯─]", " ", err).split()) and not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["reinforce", "ppo", "grpo", "dr_grpo", "dapo", *SIDE_RUNGS])
def test_help_is_the_comments_of_the_config_and_fits_80_columns(script, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_of(script, monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    plain = " ".join(text.replace("│", " ").split())
    source = (ROOT / f"algorithms/{script}.py").read_text("utf-8") + (
        ROOT / "toy_env/cli.py"
    ).read_text("utf-8")
    comments = re.findall(r"^    (\w+): \S+.* = .*  # (.+)$", source, flags=re.M)
    assert (
        len(comments) == len(fields(importlib.import_module(f"algorithms.{script}").Config)) >= 19
    )
    for name, comment in comments:
        assert re.search(
            rf"--(no_)?{name} ([A-Z\[\] .]+ )?{re.escape(comment)} \(default", plain
        ), (name, comment)
    assert plain.index("--max_grad_norm") < plain.index(
        "--steps INT"
    )  # what is the script's own comes first


def test_a_finished_run_keeps_its_settings(tmp_path, monkeypatch, capsys, no_curves):
    monkeypatch.chdir(tmp_path)
    train("done")
    before = metrics("done")
    for argv, message in (
        ([], "'done' has finished its 4 steps; to continue, give a larger --steps"),
        (["--steps=9", "--group_size=8"], "group_size was 4 when 'done' was saved and is 8 now"),
    ):
        assert exit_of("reinforce", monkeypatch, "--run_dir=done", "--resume", *argv) == 2
        assert message in capsys.readouterr().err.splitlines()[-1] and metrics("done") == before


@pytest.mark.slow
def test_the_command_line_as_a_newcomer_types_it(tmp_path):
    script = str(ROOT / "algorithms/reinforce.py")
    done = subprocess.run(
        [sys.executable, script, *FLAGS], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for text in (
        "Held-out problems before training",
        "Self-check on the first minibatch",
        "after training",
        "Accuracy on 8 held-out",
    ):
        assert text in done.stdout
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_any_causal_language_model_can_be_trained(kind, tmp_path, letters, capsys, no_curves):
    """A small checkpoint of another family, with its own tokenizer and no PAD; it never gets one
    right."""
    torch.manual_seed(0)
    sizes = {
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256, "resid_pdrop": 0.5},
        "qwen2": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "attention_dropout": 0.5},
    }  # fmt: skip
    config = AutoConfig.for_model(
        kind, vocab_size=len(letters), bos_token_id=1, eos_token_id=2, **sizes[kind]
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    letters.pad_token = None
    letters.save_pretrained(tmp_path / "model")
    train(tmp_path / "run", model=str(tmp_path / "model"), max_new_tokens=8, steps=2)
    assert "max |recomputed - sampled log-prob|" in capsys.readouterr().out
    assert [row["length_right"] for row in metrics(tmp_path / "run")] == [None, None]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoint").dtype == torch.float32


def test_self_check_fails_where_it_should(tmp_path, monkeypatch):
    """Log-probs at another temperature, log-probs one position off, and an EOS outside the mask are
    all caught."""
    honest = reinforce.completion_logps

    def broken_logps(change):
        monkeypatch.setattr(reinforce, "completion_logps", change)
        with pytest.raises(RuntimeError, match="self-check failed"):
            train(tmp_path / str(len(list(tmp_path.iterdir()))), prompts_per_step=8)

    broken_logps(
        lambda policy, rollout, temperature, size: honest(policy, rollout, 1.1 * temperature, size)
    )
    broken_logps(
        lambda policy, rollout, temperature, size: honest(policy, rollout, temperature, size).roll(
            1, dims=1
        )
    )
    monkeypatch.setattr(reinforce, "completion_logps", honest)
    draw = reinforce.sample

    def without_eos(*args, **settings):
        rollout = draw(*args, **settings)
        last = rollout.mask.sum(dim=1, keepdim=True) - 1
        rollout.mask.scatter_(1, last, False)
        rollout.logps = rollout.logps * rollout.mask
        return rollout

    monkeypatch.setattr(reinforce, "sample", without_eos)
    with pytest.raises(RuntimeError, match="self-check failed"):
        train(tmp_path / "eos")


def test_rollout_metrics_by_hand():
    """Two prompts, two completions each: k = 1 and k = 2."""
    lengths = [2, 4, 1, 3]
    mask = torch.tensor([[t < n for t in range(4)] for n in lengths])
    rollout = Rollout(
        prompt_ids=torch.zeros(4, 1), prompt_mask=torch.ones(4, 1), completion_ids=torch.zeros(4, 4), mask=mask,
        logps=torch.zeros(4, 4), entropies=0.5 * mask, truncated=torch.tensor([False, True, False, False]),
        texts=["#1", "1+1=2;#2", "#1", "#3"],
    )  # fmt: skip
    assert rollout_metrics(rollout, torch.tensor([[1.0, 0.0], [1.0, 1.0]])) == {
        "reward": 0.75, "accuracy": 0.75, "silent": 0.5, "silent_right": 0.5, "silent_wrong": 0.0, "sigma": 0.25,
        "groups_by_k": [0.0, 0.5, 0.5], "length": 2.5, "length_right": 2.0, "length_wrong": 4.0, "truncated": 0.25,
        "worked": 0.25, "entropy": 0.5,
    }  # fmt: skip
    assert rollout_metrics(rollout, torch.zeros(2, 2))["length_right"] is None


def test_update_metrics_by_hand():
    """Five tokens at ratios .7, 1.4, 1.1, .85 and 1.4, clipped to [.8, 1.25]: with A > 0 only 1.4
    is stopped, with A < 0 only .7. A sixth, masked, is far out and counts nowhere."""
    ratio = torch.tensor([[0.7, 1.4, 1.1], [0.85, 1.4, 99.0]])
    old_logps = torch.tensor([[-1.0, -2.0, -1.0], [-1.0, -0.5, -1.0]])
    minibatch = Rollout(
        prompt_ids=torch.zeros(2, 1), prompt_mask=torch.ones(2, 1), completion_ids=torch.zeros(2, 3),
        mask=torch.tensor([[True, True, True], [True, True, False]]), logps=old_logps, entropies=torch.zeros(2, 3),
        truncated=torch.tensor([False, False]), texts=["", ""],
    )  # fmt: skip

    def shown(advantages, clip=(0.8, 1.25), ref_logps=None) -> dict:
        minibatch.ref_logps, minibatch.advantages = ref_logps, torch.tensor(advantages)
        values = update_metrics(minibatch, old_logps + ratio.log(), clip)
        return {name: value.item() for name, value in values.items()}

    up = shown([[1.0], [2.0]])
    assert up["clipped_up"] == pytest.approx(2 / 5) and up["clipped_down"] == 0 and "kl" not in up
    assert up["ratio_deviation"] == pytest.approx(0.4)
    assert up["mismatch"] == pytest.approx(
        sum(abs(math.log(r)) for r in (0.7, 1.4, 1.1, 0.85, 1.4)) / 5
    )
    assert up["clipped_up_probability"] == pytest.approx((math.exp(-2) + math.exp(-0.5)) / 2)
    down = shown([[-1.0], [-2.0]])
    assert down["clipped_down"] == pytest.approx(1 / 5) and down["clipped_up"] == 0
    assert "clipped_up_probability" not in down
    by_token = shown([[-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]])  # (b, T), as PPO has them
    assert by_token["clipped_down"] == by_token["clipped_up"] == pytest.approx(1 / 5)
    assert shown([[-1.0], [-1.0]], clip=(0.9, 1.45))["clipped_down"] == pytest.approx(
        2 / 5
    )  # .7 and .85
    assert shown([[1.0], [1.0]], clip=(0.8, 1.05))["clipped_up"] == pytest.approx(3 / 5)
    ref_logps = (
        old_logps + ratio.log() + math.log(2)
    )  # u = pi_ref / pi = 2 everywhere: k3 = 2 - 1 - log 2
    assert shown([[1.0], [1.0]], ref_logps=ref_logps)["kl"] == pytest.approx(1 - math.log(2))
