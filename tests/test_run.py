"""A run as its user meets it: files, determinism, resuming, Ctrl-C, and bad input answered in one line."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from algorithms import dapo, ppo, reinforce
from toy_env.cli import silence
from toy_env.policy import BASE_MODEL
from toy_env.rollout import Rollout
from toy_env.run import rollout_metrics

ROOT = Path(__file__).parent.parent
SMALL = {"steps": 4, "prompts_per_step": 4, "group_size": 4, "eval_problems": 2, "device": "cpu"}
FLAGS = [f"--{name}={value}" for name, value in SMALL.items()]


def train(folder, **settings):
    return reinforce.train(reinforce.Config(**(SMALL | {"run_dir": str(folder)} | settings)))


def metrics(folder) -> list[dict]:
    """The rows of metrics.jsonl without the wall times."""
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def weights(folder) -> torch.Tensor:
    policy = AutoModelForCausalLM.from_pretrained(Path(folder) / "checkpoint")
    return torch.cat([p.flatten() for p in policy.parameters()])


def test_a_run_folder_holds_what_the_readme_says(tmp_path):
    results = train(tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "config.json", "metrics.jsonl", "results.json", "samples.txt", "curves.png", "checkpoint", "state.pt",
    }  # fmt: skip
    assert json.loads((tmp_path / "a/results.json").read_text()) == json.loads(json.dumps(results))
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["script"] == "reinforce" and config["prompts_per_step"] == 4 and config["learning_rate"] > 0
    rows = metrics(tmp_path / "a")
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and [row["rollouts"] for row in rows] == [16, 32, 48, 64]
    assert (tmp_path / "a/curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a/samples.txt").read_text().count("?") == 16
    assert AutoTokenizer.from_pretrained(tmp_path / "a/checkpoint")("1+1?").input_ids[0] == 1


def test_silence_is_of_both_streams(capsys):
    with silence():
        print("a line")
        print("an error", file=sys.stderr)
    print("after")
    assert capsys.readouterr() == ("after\n", "")


def test_evaluating_along_the_way_changes_nothing_else(tmp_path):
    results = train(tmp_path / "two", eval_every=2)
    train(tmp_path / "none", eval_every=0)
    rows = metrics(tmp_path / "two")
    held_out = [row["held_out"] for row in rows]
    assert [value is None for value in held_out] == [True, False, True, False]
    assert held_out[-1] == results["after"]["accuracy"]["all"]["sampled"]
    assert [row | {"held_out": None} for row in rows] == metrics(tmp_path / "none")


def test_the_length_of_an_update_is_how_far_the_weights_moved(tmp_path):
    train(tmp_path / "a", steps=1, learning_rate=1e-3)
    base = torch.cat([p.flatten() for p in AutoModelForCausalLM.from_pretrained(BASE_MODEL).parameters()])
    moved = (weights(tmp_path / "a") - base).norm().item()
    assert metrics(tmp_path / "a")[0]["update_norm"] == pytest.approx(moved, rel=1e-4) and moved > 0


def test_same_seed_same_metrics_bit_for_bit(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tmp_path / name, seed=seed)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "c"))


@pytest.mark.parametrize("script", [reinforce, ppo, dapo])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(script, tmp_path):
    """Same rows, same weights, bit for bit, also when the last save lies two steps back."""

    def train(folder, **settings):
        return script.train(script.Config(**(SMALL | {"run_dir": str(folder)} | settings)))

    train(tmp_path / "whole", steps=7)
    train(tmp_path / "parts", steps=3)
    with (tmp_path / "parts/metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "from": "after the save, to be done again"}\n{"step": 5, "cut sh')
    train(tmp_path / "parts", steps=7, resume=True)
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    whole, parts = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "parts"))
    assert whole == parts


def test_ctrl_c_ends_the_step_saves_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(whole)
    draw, calls = reinforce.sample_problems, []

    def draw_and_interrupt(*args):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(*args)

    monkeypatch.setattr(reinforce, "sample_problems", draw_and_interrupt)
    monkeypatch.setattr(sys, "argv", ["reinforce.py", *FLAGS, f"--run_dir={cut}"])
    with pytest.raises(SystemExit) as stop:
        reinforce.main()
    assert stop.value.code == 130
    assert f"stopped after step 2; to go on, add --run_dir {cut} --resume" in capsys.readouterr().err
    assert len(metrics(cut)) == 2 and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    monkeypatch.setattr(sys, "argv", ["reinforce.py", f"--run_dir={cut}", "--resume"])  # needs no other flag
    reinforce.main()
    assert metrics(cut) == metrics(whole)


def test_no_run_overwrites_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        reinforce.train(reinforce.Config(**(SMALL | {"steps": 1, "seed": 5})))
    assert sorted(path.name for path in Path("runs").iterdir()) == ["reinforce-5", "reinforce-5-2", "reinforce-5-3"]


BAD = {
    "--model=no/such-model": "model 'no/such-model' is neither a folder",
    "--model=/no/such/folder": "model '/no/such/folder' is neither a folder",
    "--model=.": "folder '.' holds no model: config.json is missing",
    "--learning_rate=-1e-4": "--learning_rate must be above 0, not -0.0001",
    "--learning_rate=nan": "--learning_rate must be above 0, not nan",
    "--prompts_per_step=0": "--prompts_per_step must be 1 or more, not 0",
    "--group_size=0": "--group_size must be 1 or more, not 0",
    "--temperature=0": "--temperature must be above 0, not 0",
    "--steps=ten": "--steps: invalid int value: 'ten'",
    "--levels=5": "--levels: level 5 does not exist; choose from 1 2 3 4",
    "--device=gpu": "device 'gpu' is not available here; choose auto, cpu, cuda or mps",
    "--stepz=5": "unknown argument '--stepz=5'; did you mean --steps?",
    "--step=5": "unknown argument '--step=5'; did you mean --steps?",
    "extra": "unknown argument 'extra'; see --help",
    "--run_dir=/dev/null/run": "cannot make the run folder '/dev/null/run'",
    "--run_dir=.": "run folder '.' exists and no run overwrites another",
    "--resume": "--resume needs the run to continue; add --run_dir",
}


@pytest.mark.parametrize("flag", BAD)
def test_bad_input_gets_one_clear_line_and_leaves_nothing_behind(flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["reinforce.py", *FLAGS, flag])
    with pytest.raises(SystemExit) as stop:
        reinforce.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert err.startswith(f"error: {BAD[flag]}") and err.count("\n") == 1 and not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "flag", "message"),
    [
        ("grpo", "--group_size=1", "--group_size must be 2 or more, not 1"),
        ("dr_grpo", "--group_size=1", "--group_size must be 2 or more, not 1"),
        ("dapo", "--overlong_buffer=57", "--overlong_buffer must be 56 (max_new_tokens) or less, not 57"),
        ("dapo", "--clip_eps_high=0", "--clip_eps_high must be above 0, not 0.0"),
        ("ppo", "--gae_lambda=1.1", "--gae_lambda must be 1 or less, not 1.1"),
        ("ppo", "--minibatches=17", "--minibatches must be 16 (the completions of a batch) or fewer, not 17"),
        ("grpo", "--kl_coef=-1", "--kl_coef must be 0 or more, not -1.0"),
        ("grpo", "--gae_lambda=1", "unknown argument '--gae_lambda=1'"),
    ],
)
def test_bad_settings_of_one_script(script, flag, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *FLAGS, flag])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"algorithms.{script}").main()
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_bad_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def error(*argv) -> str:
        monkeypatch.setattr(sys, "argv", ["reinforce.py", *argv])
        with pytest.raises(SystemExit) as stop:
            reinforce.main()
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    (tmp_path / "empty").mkdir()
    assert "'empty' is not a run folder" in error("--run_dir=empty", "--resume")
    train("done")
    assert "'done' has done its 4 steps; to go on, give a larger --steps" in error("--run_dir=done", "--resume")
    assert "group_size was 4 in 'done' and is 8 now" in error(
        "--run_dir=done", "--resume", "--steps=9", "--group_size=8"
    )
    before = metrics("done")
    (tmp_path / "done/state.pt").unlink()
    assert "'done' has no state.pt" in error("--run_dir=done", "--resume", "--steps=9")
    assert metrics("done") == before


def test_a_run_that_diverges_says_so_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reinforce, "policy_loss", lambda logps, **_: logps.sum() * float("nan"))
    monkeypatch.setattr(sys, "argv", ["reinforce.py", *FLAGS, f"--run_dir={tmp_path / 'run'}"])
    with pytest.raises(SystemExit) as stop:
        reinforce.main()
    assert stop.value.code == 2
    assert "loss is nan after step 0: training has diverged; try a smaller --learning_rate" in capsys.readouterr().err


def test_the_command_line_as_a_newcomer_types_it(tmp_path):
    script = str(ROOT / "algorithms/reinforce.py")
    done = subprocess.run([sys.executable, script, *FLAGS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in (
        "Held-out problems before training",
        "Self-check on the first batch",
        "after training",
        "Accuracy on 8 held-out",
    ):
        assert text in done.stdout
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    wrong = subprocess.run([sys.executable, script, "--learning_rate=-1"], cwd=tmp_path, capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    help_text = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert "REINFORCE for verifiable rewards" in help_text and "completions sampled for each problem" in help_text


def test_a_run_cut_off_in_its_last_step_or_its_last_evaluation_can_be_finished(tmp_path, monkeypatch):
    """Ctrl-C in the last step changes nothing; a run that was killed before its results were written resumes."""
    draw, calls = reinforce.sample_problems, []

    def interrupt_in_the_last_step(*args):
        calls.append(1)
        if len(calls) == SMALL["steps"]:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(*args)

    monkeypatch.setattr(reinforce, "sample_problems", interrupt_in_the_last_step)
    results = train(tmp_path / "run")
    assert "after" in results
    (tmp_path / "run/results.json").write_text(json.dumps({"before": results["before"]}))
    (tmp_path / "run/curves.png").unlink()
    again = train(tmp_path / "run", resume=True)
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(results)) and (tmp_path / "run/curves.png").is_file()
    assert len(metrics(tmp_path / "run")) == SMALL["steps"]


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_any_causal_language_model_can_be_trained(kind, tmp_path, letters, capsys):
    """A small checkpoint of another family, with its own tokenizer and no PAD; it never finds a right answer."""
    torch.manual_seed(0)
    sizes = {
        "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256, "resid_pdrop": 0.5},
        "qwen2": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "attention_dropout": 0.5},
    }  # fmt: skip
    config = AutoConfig.for_model(kind, vocab_size=len(letters), bos_token_id=1, eos_token_id=2, **sizes[kind])
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    letters.pad_token = None
    letters.save_pretrained(tmp_path / "model")
    train(tmp_path / "run", model=str(tmp_path / "model"), max_new_tokens=8, steps=2)
    assert "max |recomputed - sampled log-prob|" in capsys.readouterr().out
    assert [row["length_right"] for row in metrics(tmp_path / "run")] == [None, None]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoint").dtype == torch.float32


def test_out_of_memory_says_which_flag_to_turn(tmp_path, monkeypatch, capsys):
    def too_much(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(reinforce, "completion_logps", too_much)
    monkeypatch.setattr(sys, "argv", ["reinforce.py", *FLAGS, f"--run_dir={tmp_path / 'run'}"])
    with pytest.raises(SystemExit) as stop:
        reinforce.main()
    assert stop.value.code == 2
    assert "error: out of memory on the device; try a smaller --micro_batch_size" in capsys.readouterr().err


def test_self_check_fails_where_it_should(tmp_path, monkeypatch):
    """Log-probs at another temperature, log-probs one position off, and an EOS outside the mask are all caught."""
    honest = reinforce.completion_logps

    def broken_logps(change):
        monkeypatch.setattr(reinforce, "completion_logps", change)
        with pytest.raises(RuntimeError, match="self-check failed"):
            train(tmp_path / str(len(list(tmp_path.iterdir()))), prompts_per_step=8)

    broken_logps(lambda policy, rollout, temperature, size: honest(policy, rollout, 1.1 * temperature, size))
    broken_logps(lambda policy, rollout, temperature, size: honest(policy, rollout, temperature, size).roll(1, dims=1))
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
    """Two prompts, two answers each: k = 1 and k = 2."""
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


def test_continuous_integration_runs_the_readmes_test_command():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    command = "python -m pytest"
    assert command in readme and command in ci and "pip install -r requirements.txt" in readme
