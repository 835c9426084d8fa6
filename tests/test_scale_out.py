"""The scripts through TRL, started by `accelerate launch` with one and with two processes.

The fast tests check the options and what bad input is answered with. The slow ones start processes: `worker` below, in
which TRL's trainer, built as scale_out.py builds it, trains on recorded completions and writes down what it trained on
and every gradient. These gradients are compared between one and two processes and with those of our scripts.
"""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import test_parity
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, ppo, reinforce
from lessons.experiments import scale_out
from toy_env import UsageError, engines
from toy_env.cli import check_settings, run_main
from toy_env.model import BASE_MODEL, load_policy
from toy_env.rollout import Rollout, completion_logps, sample

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's own, on import and in use
ROOT = Path(__file__).parent.parent
SCRIPTS = {"grpo": grpo, "dr_grpo": dr_grpo, "dapo": dapo, "gspo": gspo, "cispo": cispo}
P, G, T, TEMPERATURE = 8, 4, 20, 0.8  # T cuts worked completions
CAP = 1.2  # CISPO's max_ratio in the comparisons of gradients: so low that ratios reach it


# The options


@pytest.mark.parametrize("name", SCRIPTS)
def test_defaults_are_those_of_the_script(name):
    ours, theirs = SCRIPTS[name].Config(), scale_out.Config(algorithm=name)
    for field, value in vars(theirs).items():
        assert not hasattr(ours, field) or field in ("run_dir",) or getattr(ours, field) == value, field
    options = scale_out.trl_settings(theirs, 1)
    if name == "cispo":
        assert options["epsilon_high"] == ours.max_ratio
    else:
        low, high = test_parity.clip_range(ours)
        assert (options["epsilon"], options.get("epsilon_high", options["epsilon"])) == (low, high)
    assert options.get("beta", 0.0) == getattr(ours, "kl_coef", 0.0)


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize("parts", [1, 4])
def test_an_optimizer_step_sees_the_same_number_of_completions(processes, parts):
    """TRL samples per_device_train_batch_size x steps_per_generation completions in each process."""
    options = scale_out.trl_settings(scale_out.Config(gradient_accumulation_steps=parts), processes)
    each = processes * options["per_device_train_batch_size"]
    assert each * options["gradient_accumulation_steps"] == 64
    assert each * options["steps_per_generation"] == 256
    assert options["max_steps"] == 60 * 4 and options["warmup_steps"] == 10 * 4


def test_further_options_are_read_as_values():
    texts = "use_vllm=true bf16=False beta=1e-2 reward_weights=[1,2] loss_type=bnpo delta=None scale_rewards=none"
    options = {"use_vllm": True, "bf16": False, "beta": 0.01, "reward_weights": [1, 2], "loss_type": "bnpo"}
    assert scale_out.further_options(texts.split()) == options | {"delta": None, "scale_rewards": "none"}
    assert scale_out.trl_settings(scale_out.Config(trl=("beta=1e-2",)), 1)["beta"] == 0.01


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"algorithm": "ppo"}, "TRL 1.16 has no trainer for ppo; choose grpo, dr_grpo, dapo, gspo, cispo"),
        ({"algorithm": "reinforce"}, "no trainer for reinforce"),
        ({"algorithm": "rloo"}, "no trainer for rloo with its loss \\(RLOOTrainer has one ratio for .*; choose"),
        ({"algorithm": "maxrl"}, "no trainer for maxrl; choose"),
        ({"algorithm": "GRPO"}, "'GRPO' does not exist; choose grpo,"),
        ({"group_size": 1}, "--group_size must be 2 or more, not 1"),
        ({"prompts_per_step": 3, "group_size": 3}, "9 completions, must be a multiple of 12: .* processes \\(3\\)"),
        ({"prompts_per_step": 30, "gradient_accumulation_steps": 7}, "must be a multiple of 84"),
        ({"prompts_per_step": 30, "gradient_accumulation_steps": 0}, "--gradient_accumulation_steps"),
        ({"prompts_per_step": 30, "overlong_buffer": 57}, "--overlong_buffer must be 56"),
        ({"prompts_per_step": 30, "run_dir": str(ROOT)}, "exists; choose another --run_dir"),
        ({"prompts_per_step": 30, "steps": 10**12}, "--steps x --prompts_per_step must be 10000000 problems or fewer"),
    ],
)
def test_bad_settings_are_answered_in_one_line(monkeypatch, settings, message):
    monkeypatch.setattr(scale_out, "PROCESSES", 3)
    with pytest.raises(UsageError, match=message) as error:
        check_settings(scale_out.Config(**settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "argv, without_trl, message",
    [
        (["--algorithm=ppo"], False, "error: TRL 1.16 has no trainer for ppo; choose"),
        (["--trl", "use_vllm"], False, "error: --trl use_vllm: write NAME=VALUE, for example"),
        (["--trl", "beta=abc"], False, "error: --trl beta: 'abc' is not of the type float"),
        (["--trl", "max_steps=1.5"], False, "error: --trl max_steps: 1.5 is not of the type int"),
        (["--trl", "reward_weights=2"], False, "error: --trl reward_weights: 2 is not of the type list[float] | None"),
        (["--trl", "loss_type=ppo"], False, "error: --trl loss_type: 'ppo' does not exist; choose grpo, dr_grpo,"),
        (
            ["--trl", "speed=1"],
            False,
            "error: TRL does not take these settings: GRPOConfig.__init__() got",
        ),
        ([], True, "error: TRL is not available (import of datasets halted; None in sys.modules); pip install -e '"),
    ],
)
def test_bad_input_ends_with_code_2(monkeypatch, capsys, tmp_path, argv, without_trl, message):
    if "--trl" in argv:
        pytest.importorskip("trl")
    monkeypatch.setattr(scale_out, "held_out_report", lambda *_, **__: pytest.fail("the work has begun"))
    if without_trl:
        monkeypatch.setitem(sys.modules, "datasets", None)
        monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.setattr(sys, "argv", ["scale_out.py", f"--run_dir={tmp_path}/run", *argv])
    with pytest.raises(SystemExit) as end:
        run_main(scale_out.Config, scale_out.main, scale_out.__doc__)
    shown = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(shown) == 1 and shown[0].startswith(message)
    assert not (tmp_path / "run").exists()


# The gradients. A case: name, options of the command line. What is broken on purpose has the name of what it breaks.

TWO_STEPS = {"num_minibatches": 2, "gradient_accumulation_steps": 2}  # of the second, ratios differ from 1
CASES = {f"{name}, {kind}": (name, settings, ())
         for name in SCRIPTS for kind, settings in (("one", {"num_minibatches": 1}), ("two", TWO_STEPS))}  # fmt: skip
SHARDED = "grpo, two"  # under FSDP as well
BROKEN = {  # name of the script, what is changed
    "sigma in Dr. GRPO": ("dr_grpo", ["scale_rewards=group"]),
    "length in Dr. GRPO": ("dr_grpo", ["loss_type=grpo"]),
    "no sigma in GRPO": ("grpo", ["scale_rewards=none"]),
    "sigma of the batch": ("grpo", ["scale_rewards=batch"]),
    "token mean in GRPO": ("grpo", ["loss_type=dapo"]),
    "another epsilon": ("grpo", ["epsilon=0.3"]),
    "no clip-higher": ("dapo", ["epsilon_high=None"]),
    "another beta": ("grpo", ["beta=0.05"]),
    "no KL": ("dr_grpo", ["beta=0.0"]),
    "KL times the ratio": ("grpo", ["use_bias_correction_kl=true"]),
    "mean over each pass": ("dapo", ["loss_type=bnpo"]),
    "penalty as large as the reward": ("dapo", ["reward_weights=[1.0, 1.0]"]),
    "ratio of the sequence": ("grpo", ["importance_sampling_level=sequence"]),
    "another limit": ("dr_grpo", ["max_completion_length=21"]),
    "temperature": ("grpo", ["temperature=1.0"]),
    "ratio of the token in GSPO": ("gspo", ["importance_sampling_level=token"]),
    "token mean in GSPO": ("gspo", ["loss_type=dapo"]),
    "another cap in CISPO": ("cispo", [f"epsilon_high={CAP - 0.1}"]),
    "a clip in CISPO": ("cispo", ["loss_type=dapo"]),
}
BROKEN_CASES = {what: (name, TWO_STEPS, options) for what, (name, options) in BROKEN.items()}


def config_of(case: str, folder: Path) -> scale_out.Config:
    """One rollout batch; a learning rate so high that the second minibatch meets the clip."""
    name, settings, options = (CASES | BROKEN_CASES)[case]
    options = [f"epsilon_high={CAP}", *options] if name == "cispo" else options
    return scale_out.Config(
        algorithm=name,
        steps=1,
        seed=2,
        prompts_per_step=P,
        group_size=G,
        max_new_tokens=T,
        temperature=TEMPERATURE,
        learning_rate=3e-4,
        warmup_steps=0,
        max_grad_norm=1e9,  # the gradients are seen after clipping
        run_dir=str(folder / case),
        trl=tuple(options),
        **settings,
    )


def start_away_from_the_reference(policy) -> None:
    """Change the weights a little, so that the KL to the base model has a gradient from the first step."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator)


def worker(folder: Path, cases: list[str]) -> None:
    """What every process runs: for each case, FOLDER/CASE-RANK.pt with the rows, gradients and weights of each step."""
    from transformers import TrainerCallback

    def whole(weights: list[Tensor]) -> Tensor:
        """As one vector, sharded or not."""
        return parameters_to_vector([w.full_tensor() if hasattr(w, "full_tensor") else w for w in weights]).detach()

    recorded = json.loads((folder / "recorded.json").read_text("utf-8"))
    for case in cases:
        config = config_of(case, folder)
        check_settings(config)
        trainer = scale_out.build_trainer(config, scale_out.trl_settings(config, scale_out.PROCESSES))
        start_away_from_the_reference(trainer.model)
        steps, rows, compute_loss = [], [], trainer._compute_loss

        def generate(prompt_ids, *_, trainer=trainer):
            first = trainer.accelerator.process_index * len(prompt_ids)
            texts = trainer.processing_class.batch_decode(prompt_ids, skip_special_tokens=True)
            return [recorded[text][(first + row) % G] for row, text in enumerate(texts)], None

        def spy(model, inputs, rows=rows, compute_loss=compute_loss):
            for part in ("prompt", "completion"):
                ids, mask = inputs[f"{part}_ids"], inputs[f"{part}_mask"].bool()
                rows.append([row[keep].tolist() for row, keep in zip(ids, mask)])
            return compute_loss(model, inputs)

        class Recorder(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, trainer=trainer, steps=steps, rows=rows, **_):
                weights = list(trainer.model_wrapped.parameters())
                pairs = [pair for i in range(0, len(rows), 2) for pair in zip(rows[i], rows[i + 1])]
                gradient = whole([weight.grad for weight in weights])
                steps.append({"rows": pairs, "gradient": gradient.clone(), "weights": whole(weights).clone()})
                rows.clear()

        trainer._generate_single_turn, trainer._compute_loss = generate, spy
        trainer.add_callback(Recorder())
        trainer.train()
        torch.save(steps, folder / f"{case}-{scale_out.RANK}.pt")
        sharded = [hasattr(weight, "full_tensor") for weight in trainer.model_wrapped.parameters()]
        assert all(sharded) if folder.name == "sharded" else not any(sharded)


def shard_on_cpus() -> None:
    """Have accelerate take processes on CPUs for processes on GPUs: on CPUs alone it does not shard."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    start = PartialState.__init__

    def start_as_gpus(self, *args, **settings) -> None:
        start(self, *args, **settings)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = start_as_gpus


FSDP = ("--use_fsdp", "--fsdp_version=2", "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP", "--main_process_port=0")


def launch(processes: int, script: Path, *argv: str) -> str:
    """Run a script by `accelerate launch` on the CPU, several processes with the flags of FSDP; returns its output."""
    if find_spec("trl") is None or find_spec("datasets") is None:
        pytest.skip("pip install -e '.[scale]' to train with TRL")
    options = FSDP if processes > 1 else ()
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", f"--num_processes={processes}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    end = subprocess.run([*command, *options, str(script), *argv], env=env, cwd=ROOT, capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    return end.stdout


@pytest.fixture(scope="module")
def recorded() -> tuple[list[dict], Rollout]:
    """The rows that scale_out.py trains on and G completions of each, by the base model."""
    rows = engines.rows(P, seed=2, chat=False)
    policy, tokenizer = load_policy()
    generator = torch.Generator().manual_seed(1)
    return rows, sample(policy, tokenizer, [row["prompt"] for row in rows], G, T, 1.5, generator=generator)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, recorded):
    """trained[processes][case]: the steps, each with the rows of all processes, the gradient and the weights.

    trained["sharded"] is of two processes under FSDP, trained["run"] the folder of a run of the program after that.
    """
    rows, rollout = recorded
    completions = [ids[keep].tolist() for ids, keep in zip(rollout.completion_ids, rollout.mask)]
    groups = {row["prompt"]: completions[i * G : (i + 1) * G] for i, row in enumerate(rows)}
    assert len(groups) == P
    folder = tmp_path_factory.mktemp("trained")
    for part in ("1", "2", "sharded"):
        (folder / part).mkdir()
        (folder / part / "recorded.json").write_text(json.dumps(groups), "utf-8")

    def read(part: str, processes: int, cases: list[str]) -> dict[str, list[dict]]:
        out = {}
        for case in cases:
            ranks = [torch.load(folder / part / f"{case}-{rank}.pt") for rank in range(processes)]
            out[case] = ranks[0]
            for step, *others in zip(*ranks):
                step["rows"] = [row for rank in (step, *others) for row in rank["rows"]]
                assert all(torch.equal(step["gradient"], other["gradient"]) for other in others)
        return out

    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(launch, processes, Path(__file__), str(folder), str(processes)) for processes in (1, 2)]
        for run in runs:
            run.result()
    one, two = read("1", 1, [*CASES, *BROKEN_CASES]), read("2", 2, [*CASES])
    return {1: one, 2: two, "sharded": read("sharded", 2, [SHARDED]), "run": folder / "run"}


def our_gradients(name: str, recorded, steps: list[dict], num_minibatches: int) -> list[Tensor]:
    """The gradient of the script's own loss at each step, on the rows and at the weights that TRL had, with its own
    advantages times TRL's documented factors."""
    rows, rollout = recorded
    script = SCRIPTS[name]
    settings = {"max_ratio": CAP} if name == "cispo" else {}
    config = script.Config(max_new_tokens=T, group_size=G, temperature=TEMPERATURE, **settings)
    rewards = torch.tensor(engines.trl_reward([], rollout.texts, [row["answer"] for row in rows for _ in range(G)]))
    if name in scale_out.OVERLONG:
        rewards = 2 * rewards - 1 + script.overlong_penalty(mask=rollout.mask, config=config)
    rewards = rewards.view(P, G)
    silent = (rewards == rewards[:, :1]).all(dim=1)
    assert 0 < silent.sum() < P - 3 and rollout.truncated.any()
    advantages = script.compute_advantages(rewards=rewards)
    if name != "dr_grpo":  # TRL's standard deviation has ddof 1 and an epsilon of 1e-4
        sigma = rewards.std(dim=1, keepdim=True)
        advantages = advantages * ((G - 1) / G) ** 0.5 * sigma / (sigma + 1e-4)
    policy, tokenizer = load_policy()
    reference, _ = load_policy()
    start_away_from_the_reference(policy)
    with torch.no_grad():
        old_logps = completion_logps(policy, rollout, TEMPERATURE)
        ref_logps = completion_logps(reference, rollout, TEMPERATURE)
    index = {}  # of a row, by its prompt and completion; two completions that are equal have equal advantages
    for row in range(P * G):
        prompt = rollout.prompt_ids[row][rollout.prompt_mask[row]].tolist()
        index[str((prompt, rollout.completion_ids[row][rollout.mask[row]].tolist()))] = row
    gradients, clipped, kl = [], [], []
    for step in steps:
        chosen = torch.tensor([index[str(pair)] for pair in step["rows"]])
        minibatch = rollout[chosen]
        torch.nn.utils.vector_to_parameters(step["weights"], policy.parameters())
        logps = completion_logps(policy, minibatch, TEMPERATURE)
        ratio = (logps - old_logps[chosen]).exp()
        if name == "gspo":
            ratio = gspo.sequence_ratio(logps=logps, old_logps=old_logps[chosen], mask=minibatch.mask)
        low, high = test_parity.clip_range(config)
        clipped.append((((ratio < 1 - low) | (ratio > 1 + high)) & minibatch.mask).float().mean().item())
        kl.append((logps - ref_logps[chosen]).abs().mean().item())
        loss = script.policy_loss(
            logps=logps,
            old_logps=old_logps[chosen],
            advantages=advantages.view(-1, 1)[chosen],
            mask=minibatch.mask,
            config=config,
            **({} if name in scale_out.OVERLONG else {"ref_logps": ref_logps[chosen]}),
        )
        if name in scale_out.OVERLONG:  # TRL divides by the mean number of tokens of a minibatch, not by its own
            loss = loss * minibatch.mask.sum() / (rollout.mask.sum() / num_minibatches)
        gradients.append(parameters_to_vector(torch.autograd.grad(loss, list(policy.parameters()))))
    assert min(kl) > 0.01 and clipped[0] == 0 and (num_minibatches == 1 or clipped[1] > 0.005)
    return gradients


def distance(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_one_and_two_processes_train_on_the_same_rows(trained, recorded, case):
    """Every recorded completion once, beside its own prompt."""
    rollout = recorded[1]
    ids = zip(rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask)
    expected = sorted(str((p[pm].tolist(), c[cm].tolist())) for p, pm, c, cm in ids)
    for processes in (1, 2):
        assert sorted(str(row) for step in trained[processes][case] for row in step["rows"]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_gradient_of_two_processes_is_that_of_one(trained, name):
    """With one minibatch: of several, each process makes its own, and TRL shuffles before."""
    (one,), (two,) = (trained[processes][f"{name}, one"] for processes in (1, 2))
    assert distance(two["gradient"], one["gradient"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_trl_is_that_of_the_script(trained, recorded, case, processes):
    """With the KL and, in the second step, ratios inside and outside the clip."""
    name, settings, _ = CASES[case]
    steps = trained[processes][case]
    ours = our_gradients(name, recorded, steps, settings["num_minibatches"])
    assert len(steps) == len(ours) == settings["num_minibatches"]
    for step, gradient in zip(steps, ours):
        assert distance(step["gradient"], gradient) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("case", BROKEN_CASES)
def test_every_option_matters(trained, recorded, case):
    """With one option changed the gradient of the second step is another."""
    steps = trained[1][case]
    ours = our_gradients(BROKEN_CASES[case][0], recorded, steps, 2)
    assert distance(steps[1]["gradient"], ours[1]) > 5e-3


# The program


@pytest.mark.slow
def test_accuracy_rises(tmp_path):
    """On held-out problems, by more than the 95 % intervals: from .66 to .85 or more for each of four seeds."""
    sizes = "--prompts_per_step 8 --num_minibatches 1 --levels 1 2 --eval_problems 32"
    settings = "--steps 20 --learning_rate 5e-4 --warmup_steps 3"
    script = ROOT / "lessons/experiments/scale_out.py"
    shown = launch(1, script, *f"{sizes} {settings} --run_dir {tmp_path}/run".split())
    assert "one process" not in shown
    results = json.loads((tmp_path / "run/results.json").read_text("utf-8"))
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    assert before["sampled_interval"][1] < after["sampled_interval"][0] and after["sampled"] > before["sampled"] + 0.1
    assert after["greedy"] > before["greedy"] + 0.2
    assert "grpo with TRL on 1 x cpu" in shown and "step 20/20" in shown and "before            after" in shown
    assert [row["step"] for row in results["log"] if "reward" in row] == list(range(1, 21))
    rates = [row["learning_rate"] for row in results["log"] if "reward" in row]
    assert rates[:5] == pytest.approx([0.0, 5e-4 / 3, 1e-3 / 3, 5e-4, 5e-4])


@pytest.mark.slow
@pytest.mark.parametrize("flag, line, code", [("--trl=beta=abc", "error: --trl beta:", 2), ("", "stopped", 130)])
def test_two_processes_end_in_one_line(tmp_path, flag, line, code):
    """A refusal and Ctrl-C under launch.py. No folder is left."""
    pytest.importorskip("trl")
    folder, sizes = ROOT / "lessons/experiments", "--prompts_per_step=8 --eval_problems=1"
    command = [sys.executable, folder / "launch.py", "--multi_gpu", "--num_processes=2", "--main_process_port=0"]
    command += [folder / "scale_out.py", *sizes.split(), f"--run_dir={tmp_path}/run", *filter(None, [flag])]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, cwd=tmp_path, **pipes) as run:
        if any("step 1/" in shown for shown in run.stdout):
            run.send_signal(signal.SIGINT)
        error = run.stderr.read()
    assert run.returncode == code and error.startswith(line) and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_under_fsdp_gradient_and_checkpoint_are_those_of_the_whole_model(trained, recorded):
    """Every weight cut over two processes; the program leaves a whole, trained model."""
    steps = trained["sharded"][SHARDED]
    for step, gradient in zip(steps, our_gradients("grpo", recorded, steps, 2)):
        assert distance(step["gradient"], gradient) < 1e-4
    (base, _), (policy, _) = load_policy(), load_policy(str(trained["run"] / "checkpoint"))
    moved = [(a - b).abs().max().item() for a, b in zip(base.parameters(), policy.parameters(), strict=True)]
    assert min(moved) > 1e-5 and max(moved) < 1e-3
    assert json.loads((trained["run"] / "results.json").read_text("utf-8"))["processes"] == 2


# The page algorithms/OUTGROW.md


def page_section(section: str) -> str:
    return (ROOT / "algorithms/OUTGROW.md").read_text("utf-8").split(f"\n### {section}\n")[1].split("\n#")[0]


def page_options(section: str, library: str) -> dict[str, str]:
    """The options NAME=VALUE in the column of a library in the table of a section, after those of the section that a
    row "otherwise as SECTION" names."""
    table = [line.split("|") for line in page_section(section).splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in table[0]].index(library)
    options = dict(re.findall(r"`([+a-z][a-z_.]*)=([^`]*)`", " ".join(row[column] for row in table)))
    other = re.findall(r"^otherwise as (\w+)$", "\n".join(row[1].strip() for row in table), re.MULTILINE)
    return page_options(other[0], library) | options if other else options


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_options_of_trl_on_the_page_are_those_of_the_program(name):
    """Those that it leaves at TRL's default are in TRL's own list, with that default."""
    settings = scale_out.trl_settings(scale_out.Config(algorithm=name), 1)
    options = page_options("all scripts", "TRL") | page_options(name, "TRL")
    assert len(options) > 12
    for option, value in scale_out.further_options([f"{key}={value}" for key, value in options.items()]).items():
        if option != "scale_rewards" or name == "dr_grpo":
            assert settings[option] == value
    if find_spec("trl"):
        theirs = (Path(find_spec("trl").origin).parent / "trainer/grpo_config.py").read_text("utf-8")
        assert re.search(r'scale_rewards: str = field\(\s+default="group"', theirs)
        assert "    mask_truncated_completions: bool" in theirs


@pytest.fixture(scope="module")
def verl():
    if find_spec("verl") is None or find_spec("hydra") is None:
        pytest.skip(test_parity.INSTALL_VERL)
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo import core_algos
    from verl.utils import tensordict_utils
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils import losses

    def read(name: str):
        """verl's configuration under the options of the page; raises if it does not have one of them."""
        options = page_options("all scripts", "verl") | page_options(name, "verl")
        assert len(options) > 12
        options = {re.sub(r"^(actor|rollout)\.", r"actor_rollout_ref.\1.", key): options[key] for key in options}
        with initialize_config_module("verl.trainer.config", version_base=None):
            options["critic.model.path"] = BASE_MODEL
            return compose("ppo_trainer", [f"{key}={value}" for key, value in options.items()])

    modules = {"core": core_algos, "losses": losses, "tensordict": tensordict_utils}
    return SimpleNamespace(read=read, dataclass=omega_conf_to_dataclass, **modules)


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize("name", ["reinforce", *test_parity.SCRIPTS])
def test_verl_computes_what_the_script_does_under_the_options_of_the_page(verl, monkeypatch, name):
    """Its advantages, up to the degrees of freedom and epsilon of sigma, and its loss and gradient exactly."""
    script = reinforce if name == "reinforce" else test_parity.SCRIPTS[name]
    ours, theirs, batch = script.Config(), verl.read(name), test_parity.random_batch(0)
    algorithm, actor = theirs.algorithm, verl.dataclass(theirs.actor_rollout_ref.actor)
    P, G = test_parity.P, test_parity.G

    n, prompts = theirs.actor_rollout_ref.rollout.n, theirs.data.train_batch_size
    assert n * prompts == ours.prompts_per_step * ours.group_size
    assert prompts / actor.ppo_mini_batch_size == getattr(ours, "num_minibatches", 1)
    assert theirs.data.max_response_length == ours.max_new_tokens
    assert theirs.actor_rollout_ref.rollout.temperature == ours.temperature
    optimizer = (actor.optim.lr, actor.optim.lr_warmup_steps, actor.optim.clip_grad, actor.optim.weight_decay)
    assert optimizer == (ours.learning_rate, ours.warmup_steps, ours.max_grad_norm, 0.0)

    reference = verl.dataclass(theirs.actor_rollout_ref.ref.fsdp_config)
    for engine in (actor.engine, reference, verl.dataclass(theirs.critic).engine):
        assert engine.mixed_precision == {"param_dtype": "fp32"}

    token_rewards, mask = test_parity.at_last_token(batch.rewards, batch), batch.mask.double()
    if algorithm.use_kl_in_reward:
        kl = verl.core.kl_penalty(batch.old_logps, batch.ref_logps, algorithm.kl_penalty)
        token_rewards = token_rewards - algorithm.kl_ctrl.kl_coef * kl * mask
    if name == "maxrl":  # what the page says to register
        monkeypatch.setattr(verl.core, "ADV_ESTIMATOR_REGISTRY", {**verl.core.ADV_ESTIMATOR_REGISTRY})
        exec(page_section(name).split("```python\n")[1].split("```")[0], {})
    estimator = verl.core.get_adv_estimator_fn(algorithm.adv_estimator)
    if name == "ppo":
        settings = {"values": batch.old_values, "gamma": algorithm.gamma, "lam": algorithm.lam}
    else:
        group = np.repeat(np.arange(P * G // n), n) if name == "reinforce" else np.repeat(np.arange(P), G)
        settings = {"index": group, "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo}
    advantages, their_returns = estimator(token_rewards, response_mask=mask, **settings)
    if name == "ppo":
        old = {"values": batch.old_values, "old_logps": batch.old_logps, "ref_logps": batch.ref_logps}
        expected, returns = ppo.compute_advantages(rewards=batch.rewards, **old, mask=batch.mask, config=ours)
        N = batch.mask.sum().item()
        expected = expected * ((N - 1) / N) ** 0.5
        test_parity.assert_close(their_returns[batch.mask], returns[batch.mask])
    else:
        expected = script.compute_advantages(rewards=batch.rewards).view(-1, 1)
        if name in ("grpo", "dapo", "gspo", "cispo"):
            sigma = batch.rewards.std(dim=1).repeat_interleave(G).unsqueeze(1)
            expected = expected * ((G - 1) / G) ** 0.5 * sigma / (sigma + 1e-6)
        expected = expected * batch.mask
    test_parity.assert_close(advantages * batch.mask, expected, atol=1e-8)

    old_logps = batch.old_logps
    if name == "reinforce":  # one optimizer step for each batch: the ratio is 1
        old_logps = batch.logps.detach()
        loss = reinforce.policy_loss(logps=batch.logps, advantages=advantages, mask=batch.mask, config=ours)
    else:
        loss = test_parity.script_loss(name, batch, advantages, ours)
    monkeypatch.setattr(verl.losses, "no_padding_2_padding", lambda x, data: x)
    tensors = {"response_mask": batch.mask.long(), "old_log_probs": old_logps, "advantages": advantages}
    world = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    tensors = verl.tensordict.get_tensordict({**tensors, "ref_log_prob": batch.ref_logps}, non_tensor_dict=world)
    their_loss = verl.losses.ppo_loss(actor, {"log_probs": batch.logps}, tensors)[0]
    ours_gradient, their_gradient = (test_parity.gradient(x, batch.logps) for x in (loss, their_loss))
    test_parity.assert_close(ours_gradient, their_gradient)
    assert ours_gradient.abs().max() > 1e-4
    if name != "reinforce":
        test_parity.assert_close(loss, their_loss)
    if name == "ppo":
        assert theirs.critic.cliprange_value == ours.value_clip
        optimizer = theirs.critic.optim
        settings = (optimizer.lr, optimizer.weight_decay, optimizer.lr_warmup_steps)
        assert settings == (ours.critic_learning_rate, 0.0, ours.warmup_steps)


if __name__ == "__main__":
    folder, processes = Path(sys.argv[1]), sys.argv[2]
    flag = os.environ.pop("ACCELERATE_USE_FSDP", "false")  # read whenever a trainer is made
    worker(folder / processes, [*CASES, *(BROKEN_CASES if processes == "1" else ())])
    if processes == "2":
        os.environ["ACCELERATE_USE_FSDP"] = flag
        shard_on_cpus()
        worker(folder / "sharded", [SHARDED])
        small = "--algorithm dapo --steps 1 --prompts_per_step 4 --num_minibatches 2 --warmup_steps 0 --eval_problems 2"
        sys.argv[1:] = [*small.split(), f"--run_dir={folder}/run"]
        run_main(scale_out.Config, scale_out.main, scale_out.__doc__)
    scale_out.leave()
