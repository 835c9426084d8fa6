"""The scripts through TRL, started by `accelerate launch` with one and with two processes.

The fast tests check the options and the answers to bad input. The slow ones start processes:
`record` below, in which TRL's trainer, built as scale_out.py builds it, trains on recorded
completions and writes down what it trained on and every gradient. These gradients are compared
between one and two processes and with those of our scripts.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import test_parity
import torch
from conftest import ROOT, python
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from algorithms import cispo, dapo, dr_grpo, grpo, gspo
from lessons.experiments import scale_out
from toy_env import UsageError, engines
from toy_env.cli import check_settings, run_main
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's own, on import and in use
SCRIPTS = {"grpo": grpo, "dr_grpo": dr_grpo, "dapo": dapo, "gspo": gspo, "cispo": cispo}
P, G, T, TEMPERATURE = 8, 4, 20, 0.8  # T cuts worked completions
CAP = 1.2  # CISPO's max_ratio in the comparisons of gradients: so low that ratios reach it


# The options


@pytest.mark.parametrize("name", SCRIPTS)
def test_defaults_are_those_of_the_script(name):
    ours, theirs = SCRIPTS[name].Config(), scale_out.Config(algorithm=name)
    for field, value in vars(theirs).items():
        assert not hasattr(ours, field) or field in ("run_dir",) or getattr(ours, field) == value, (
            field
        )
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
    """TRL samples per_device_train_batch_size x steps_per_generation completions in each
    process."""
    options = scale_out.trl_settings(scale_out.Config(gradient_accumulation_steps=parts), processes)
    each = processes * options["per_device_train_batch_size"]
    assert each * options["gradient_accumulation_steps"] == 64
    assert each * options["steps_per_generation"] == 256
    assert options["max_steps"] == 60 * 4 and options["warmup_steps"] == 10 * 4


def test_further_options_are_read_as_values():
    texts = "use_vllm=true bf16=False beta=1e-2 reward_weights=[1,2] loss_type=bnpo delta=None scale_rewards=none"
    options = {
        "use_vllm": True,
        "bf16": False,
        "beta": 0.01,
        "reward_weights": [1, 2],
        "loss_type": "bnpo",
    }
    assert scale_out.further_options(texts.split()) == options | {
        "delta": None,
        "scale_rewards": "none",
    }
    assert scale_out.trl_settings(scale_out.Config(trl=("beta=1e-2",)), 1)["beta"] == 0.01


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"algorithm": "ppo"},
            "TRL 1.16 has no trainer for 'ppo'; choose grpo, dr_grpo, dapo, gspo, cispo",
        ),
        ({"group_size": 1}, "--group_size must be 2 or more, not 1"),
        (
            {"prompts_per_step": 3, "group_size": 3},
            "9 completions, must be a multiple of 12: .* processes \\(3\\)",
        ),
        ({"prompts_per_step": 30, "gradient_accumulation_steps": 7}, "must be a multiple of 84"),
        ({"prompts_per_step": 30, "overlong_buffer": 57}, "--overlong_buffer must be 56"),
        ({"prompts_per_step": 30, "run_dir": str(ROOT)}, "exists; choose another --run_dir"),
    ],
)
def test_bad_settings_are_refused_in_one_line(monkeypatch, settings, message):
    monkeypatch.setattr(scale_out, "PROCESSES", 3)
    with pytest.raises(UsageError, match=message) as error:
        check_settings(scale_out.Config(**settings))
    assert "\n" not in str(error.value)


# The gradients

TWO_STEPS = {
    "num_minibatches": 2,
    "gradient_accumulation_steps": 2,
}  # in the second, ratios differ from 1
CASES = {f"{name}, {kind}": (name, settings)
         for name in SCRIPTS for kind, settings in (("one", {"num_minibatches": 1}), ("two", TWO_STEPS))}  # fmt: skip
SHARDED = "grpo, two"  # under FSDP as well


def config_of(case: str, folder: Path) -> scale_out.Config:
    """One rollout batch; a learning rate so high that the second minibatch meets the clip."""
    name, settings = CASES[case]
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
        trl=(f"epsilon_high={CAP}",) if name == "cispo" else (),
        **settings,
    )


def start_away_from_the_reference(policy) -> None:
    """Change the weights a little, so that the KL to the base model has a gradient from the first
    step."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator)


def record(case: str, folder: Path) -> None:
    """What every process runs: it writes FOLDER/CASE-RANK.pt with the rows, gradient and weights of
    each step."""
    from transformers import TrainerCallback

    config = config_of(case, folder)
    check_settings(config)
    trainer = scale_out.build_trainer(config, scale_out.trl_settings(config, scale_out.PROCESSES))
    start_away_from_the_reference(trainer.model)
    recorded = json.loads((folder / "recorded.json").read_text("utf-8"))
    steps, rows, compute_loss = [], [], trainer._compute_loss

    def generate(prompt_ids, *_):
        first = trainer.accelerator.process_index * len(prompt_ids)
        texts = trainer.processing_class.batch_decode(prompt_ids, skip_special_tokens=True)
        return [recorded[text][(first + row) % G] for row, text in enumerate(texts)], None

    def see_pass(model, inputs):
        ids = (
            (inputs[f"{part}_ids"], inputs[f"{part}_mask"].bool())
            for part in ("prompt", "completion")
        )
        rows.extend(zip(*([row[kept].tolist() for row, kept in zip(*part)] for part in ids)))
        return compute_loss(model, inputs)

    def whole(weights: list[Tensor]) -> Tensor:
        """As one vector, sharded or not."""
        return parameters_to_vector(
            [w.full_tensor() if hasattr(w, "full_tensor") else w for w in weights]
        ).detach()

    class Recorder(TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            weights = list(trainer.model_wrapped.parameters())
            assert all(
                hasattr(weight, "full_tensor") == (folder.name == "sharded") for weight in weights
            )
            gradient = whole([weight.grad for weight in weights])
            steps.append(
                {"rows": rows[:], "gradient": gradient.clone(), "weights": whole(weights).clone()}
            )
            rows.clear()

    trainer._generate_single_turn, trainer._compute_loss = generate, see_pass
    trainer.add_callback(Recorder())
    trainer.train()
    torch.save(steps, folder / f"{case}-{scale_out.RANK}.pt")


def shard_on_cpus() -> None:
    """Have accelerate take processes on CPUs for processes on GPUs: on CPUs alone it does not
    shard."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    start = PartialState.__init__

    def start_as_gpus(self, *args, **settings) -> None:
        start(self, *args, **settings)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = start_as_gpus


LAUNCH, PORT = ("-m", "accelerate.commands.accelerate_cli", "launch"), "--main_process_port=0"
FSDP = ("--use_fsdp", "--fsdp_version=2", "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP", PORT)
PROGRAM = ROOT / "lessons/experiments/scale_out.py"


def launch(processes: int, script: Path, *argv: str) -> str:
    """Run a script by `accelerate launch` on the CPU, several processes with the flags of FSDP;
    returns its output."""
    if find_spec("trl") is None or find_spec("datasets") is None:
        pytest.skip("pip install -e '.[scale]' to train with TRL")
    end = python(
        *LAUNCH, f"--num_processes={processes}", *(FSDP if processes > 1 else ()), script, *argv
    )
    assert end.returncode == 0, end.stderr
    return end.stdout


def pairs_of(rollout: Rollout) -> list[tuple[list[int], list[int]]]:
    """Prompt and completion of every row, without padding."""
    columns = zip(rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask)
    return [(prompt[p].tolist(), completion[c].tolist()) for prompt, p, completion, c in columns]


@pytest.fixture(scope="module")
def recorded() -> tuple[list[dict], Rollout]:
    """The rows that scale_out.py trains on and G completions of each, by the base model."""
    rows = engines.rows(P, seed=2, chat=False)
    policy, tokenizer = load_policy()
    generator = torch.Generator().manual_seed(1)
    return rows, sample(
        policy, tokenizer, [row["prompt"] for row in rows], G, T, 1.5, generator=generator
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory, recorded):
    """trained["1"][case], of one process, and trained["2"][case], of two: the steps, each with the
    rows of all processes, the gradient and the weights. trained["sharded"] is of two processes
    under FSDP, and trained["run"] is the folder of a run of the program after that."""
    rows, rollout = recorded
    completions = [completion for _, completion in pairs_of(rollout)]
    groups = {row["prompt"]: completions[i * G : (i + 1) * G] for i, row in enumerate(rows)}
    assert len(groups) == P
    folder = tmp_path_factory.mktemp("trained")
    for part in ("1", "2", "sharded"):
        (folder / part).mkdir()
        (folder / part / "recorded.json").write_text(json.dumps(groups), "utf-8")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda n: launch(n, Path(__file__), str(folder), str(n)), (1, 2)))

    def read(part: str, case: str) -> list[dict]:
        ranks = [
            torch.load(folder / part / f"{case}-{rank}.pt")
            for rank in range(1 if part == "1" else 2)
        ]
        for step, *others in zip(*ranks):
            step["rows"] = [row for rank in (step, *others) for row in rank["rows"]]
            assert all(torch.equal(step["gradient"], other["gradient"]) for other in others)
        return ranks[0]

    steps = {part: {case: read(part, case) for case in CASES} for part in ("1", "2")}
    return steps | {"sharded": {SHARDED: read("sharded", SHARDED)}, "run": folder / "run"}


def assert_gradients_of_the_script(case: str, recorded, steps: list[dict]) -> None:
    """At each step, TRL's gradient is that of the script's own loss, on the rows and at the weights
    that TRL had, with the script's advantages times TRL's documented factors."""
    rows, rollout = recorded[0], recorded[1][torch.arange(P * G)]  # a copy
    name, settings = CASES[case]
    script, with_kl = SCRIPTS[name], name not in scale_out.OVERLONG
    cap = {"max_ratio": CAP} if name == "cispo" else {}
    config = script.Config(max_new_tokens=T, group_size=G, temperature=TEMPERATURE, **cap)
    rewards = torch.tensor(
        engines.trl_reward([], rollout.texts, [row["answer"] for row in rows for _ in range(G)])
    )
    if not with_kl:
        rewards = 2 * rewards - 1 + script.overlong_penalty(mask=rollout.mask, config=config)
    rewards = rewards.view(P, G)
    silent = (rewards == rewards[:, :1]).all(dim=1)
    assert 0 < silent.sum() < P - 3 and rollout.truncated.any()
    sigma = rewards.std(dim=1, keepdim=True)  # TRL's has ddof 1 and an epsilon of 1e-4
    factor = 1 if name == "dr_grpo" else ((G - 1) / G) ** 0.5 * sigma / (sigma + 1e-4)
    rollout.advantages = (script.compute_advantages(rewards=rewards) * factor).view(-1, 1)
    policy, reference = load_policy()[0], load_policy()[0]
    start_away_from_the_reference(policy)
    with torch.no_grad():
        rollout.logps = completion_logps(policy, rollout, TEMPERATURE)
        rollout.ref_logps = completion_logps(reference, rollout, TEMPERATURE)
    pairs, clipped = pairs_of(rollout), []  # two rows that are equal have equal advantages
    assert len(steps) == settings["num_minibatches"]
    for step in steps:
        minibatch = rollout[torch.tensor([pairs.index(tuple(pair)) for pair in step["rows"]])]
        torch.nn.utils.vector_to_parameters(step["weights"], policy.parameters())
        logps = completion_logps(policy, minibatch, TEMPERATURE)
        inputs = {"logps": logps, "old_logps": minibatch.logps, "mask": minibatch.mask}
        ratio = gspo.sequence_ratio(**inputs) if name == "gspo" else (logps - minibatch.logps).exp()
        low, high = test_parity.clip_range(config)
        clipped.append(
            (((ratio < 1 - low) | (ratio > 1 + high)) & minibatch.mask).float().mean().item()
        )
        inputs |= {"ref_logps": minibatch.ref_logps} if with_kl else {}
        loss = script.policy_loss(**inputs, advantages=minibatch.advantages, config=config)
        if not with_kl:  # TRL divides by the mean number of tokens of a minibatch, not by its own
            loss = loss * minibatch.mask.sum() / (rollout.mask.sum() / len(steps))
        gradient = parameters_to_vector(torch.autograd.grad(loss, list(policy.parameters())))
        assert distance(step["gradient"], gradient) < 1e-4
    assert clipped[0] == 0 and all(share > 0.005 for share in clipped[1:])


def distance(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("case", CASES)
def test_trl_trains_on_the_recorded_rows_with_the_gradient_of_the_script(
    trained, recorded, case, processes
):
    """Every completion once, beside its own prompt; with the KL and, in the second step, ratios
    inside and outside the clip. With one minibatch two processes have the gradient of one (of
    several, each process makes its own)."""
    steps = trained[processes][case]
    assert sorted(pair for step in steps for pair in step["rows"]) == sorted(pairs_of(recorded[1]))
    assert_gradients_of_the_script(case, recorded, steps)
    if len(steps) == 1:
        assert distance(steps[0]["gradient"], trained["1"][case][0]["gradient"]) < 1e-5


@pytest.mark.slow
def test_under_fsdp_gradient_and_checkpoint_are_those_of_the_whole_model(trained, recorded):
    """Every weight cut over two processes; the program leaves a whole, trained model."""
    assert_gradients_of_the_script(SHARDED, recorded, trained["sharded"][SHARDED])
    (base, _), (policy, _) = load_policy(), load_policy(str(trained["run"] / "checkpoint"))
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(base.parameters(), policy.parameters(), strict=True)
    ]
    assert min(moved) > 1e-5 and max(moved) < 1e-3
    assert json.loads((trained["run"] / "results.json").read_text("utf-8"))["processes"] == 2


# The program


@pytest.mark.slow
def test_accuracy_rises(tmp_path):
    """On held-out problems, by more than the 95 % intervals: from .66 to .85 or more for each of
    four seeds."""
    sizes = "--prompts_per_step 8 --num_minibatches 1 --levels 1 2 --eval_problems 32"
    settings = "--steps 20 --learning_rate 5e-4 --warmup_steps 3"
    shown = launch(1, PROGRAM, *f"{sizes} {settings} --run_dir {tmp_path}/run".split())
    results = json.loads((tmp_path / "run/results.json").read_text("utf-8"))
    before, after = (results[when]["accuracy"]["all"] for when in ("before", "after"))
    assert (
        before["sampled_interval"][1] < after["sampled_interval"][0]
        and after["sampled"] > before["sampled"] + 0.1
    )
    assert after["greedy"] > before["greedy"] + 0.2
    assert (
        "grpo with TRL on 1 x cpu" in shown
        and "step 20/20" in shown
        and "before            after" in shown
    )
    rates = [row["learning_rate"] for row in results["log"] if "reward" in row]
    assert len(rates) == 20 and rates[:5] == pytest.approx([0.0, 5e-4 / 3, 1e-3 / 3, 5e-4, 5e-4])


if __name__ == "__main__":
    folder, processes = Path(sys.argv[1]), sys.argv[2]
    flag = os.environ.pop("ACCELERATE_USE_FSDP", "false")  # read whenever a trainer is made
    for case in CASES:
        record(case, folder / processes)
    if processes == "2":
        os.environ["ACCELERATE_USE_FSDP"] = flag
        shard_on_cpus()
        record(SHARDED, folder / "sharded")
        small = "--algorithm dapo --steps 1 --prompts_per_step 4 --num_minibatches 2 --warmup_steps 0 --eval_problems 2"
        sys.argv[1:] = [*small.split(), f"--run_dir={folder}/run"]
        run_main(scale_out.Config, scale_out.main, scale_out.__doc__)
    sys.stdout.flush()
    os._exit(0)  # as scale_out.py ends
