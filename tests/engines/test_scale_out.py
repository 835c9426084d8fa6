"""The scripts through TRL, started by `accelerate launch` with two processes, under FSDP.

The slow tests start `record` below, in which TRL's trainer, built as scale_out.py builds it, trains
on recorded completions and writes down its rows and every gradient. These gradients are compared
with those of our scripts.
"""

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from conftest import ROOT, build_tiny_model, python
from test_parity import OPTIONS, SCRIPTS, ddof_factor, script_loss
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lessons.experiments import engines, scale_out
from toy_env.model import load_policy
from toy_env.rollout import Rollout, completion_logps, sample

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's own, on import and in use
P, G, T, TEMPERATURE = 8, 4, 20, 0.8  # T cuts worked completions


@pytest.mark.parametrize("name", scale_out.ALGORITHMS)
def test_defaults_are_those_of_the_script_and_of_options_json(name):
    """test_parity.py has the losses under these options. options.json also names TRL's default of
    scale_rewards."""
    ours, theirs = SCRIPTS[name].Config(), scale_out.Config(algorithm=name)
    for field, value in vars(theirs).items():
        assert getattr(ours, field, value) == value, field
    settings = {"scale_rewards": "group"} | scale_out.trl_settings(theirs, 1)
    expected = OPTIONS["all scripts"]["TRL"] | OPTIONS[name]["TRL"]
    assert {key: settings[key] for key in expected} == expected


@pytest.fixture
def build(trl, tmp_path):
    """build(policy, tokenizer, **settings) makes a trainer of one step for a saved model."""

    def trainer(policy, tokenizer, **settings):
        for part in (policy, tokenizer):
            part.save_pretrained(tmp_path / "model")
        settings |= {"model": str(tmp_path / "model"), "run_dir": str(tmp_path / "run")}
        config = scale_out.Config(**settings, steps=1, num_minibatches=1, prompts_per_step=8)
        return scale_out.build_trainer(config, scale_out.trl_settings(config, 1))

    return trainer


def test_nothing_that_a_model_brings_along_changes_what_is_sampled(build, spy):
    """Sampled like this, "#" (18) would never be written, and no completion be right. Its end
    tokens stay: 10 is "7".

    Seen to fail: with the model's generation_config as it is; without its end tokens."""
    policy, tokenizer = load_policy()
    policy.generation_config.update(suppress_tokens=[18], eos_token_id=[2, 10])
    calls = spy(scale_out, "trl_reward")
    build(policy, tokenizer).train()
    assert sum(calls[0].result) > 4
    assert not any("7" in text[:-1] for text in calls[0].completions)


def test_a_chat_model_under_trl_reads_what_it_reads_in_the_scripts(build, letters):
    """The beginning of its reply and one BOS, which both the template and the tokenizer write.

    Seen to fail: with a second BOS; with chat messages."""
    letters.chat_template = "<bos><user>{{ messages[0].content }}<assistant>"
    trainer = build(build_tiny_model(len(letters)), letters, task="lessons.experiments.sums")
    ids = letters(trainer.train_dataset[0]["prompt"]).input_ids
    text = "".join(letters.convert_ids_to_tokens(ids))
    assert re.fullmatch(r"<bos><user>Answer .*\nWhat is (.+)\?<assistant>\1 =", text)


# In every process


def whole(weights: list[Tensor]) -> Tensor:
    """Sharded weights as one vector."""
    return parameters_to_vector([weight.full_tensor() for weight in weights]).detach().clone()


def record(name: str, folder: Path) -> None:
    """Train for one rollout batch and two optimizer steps, and write the rows, gradient and weights
    of each step to FOLDER/NAME.pt. The gradients are seen after clipping, which is therefore
    off."""
    from accelerate.utils import gather_object
    from transformers import TrainerCallback

    config = scale_out.Config(
        algorithm=name,
        steps=1,
        seed=2,
        prompts_per_step=P,
        group_size=G,
        max_new_tokens=T,
        temperature=TEMPERATURE,
        num_minibatches=2,
        gradient_accumulation_steps=2,
        learning_rate=3e-4,
        warmup_steps=0,
        run_dir=str(folder / name),
        trl=("max_grad_norm=1e9",),
    )
    trainer = scale_out.build_trainer(config, scale_out.trl_settings(config, scale_out.PROCESSES))
    groups = json.loads((folder / "groups.json").read_text("utf-8"))
    steps, rows, compute_loss = [], [], trainer._compute_loss
    decode = trainer.processing_class.batch_decode

    def generate(prompt_ids, *_):
        first = trainer.accelerator.process_index * len(prompt_ids)
        texts = decode(prompt_ids, skip_special_tokens=True)
        return [groups[text][(first + row) % G] for row, text in enumerate(texts)], None

    def see_pass(model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        rows.extend(decode(ids, skip_special_tokens=True))
        return compute_loss(model, inputs)

    class Recorder(TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            weights = list(trainer.model_wrapped.parameters())
            gradient = whole([weight.grad for weight in weights])
            seen = gather_object(rows)
            steps.append({"rows": seen, "gradient": gradient, "weights": whole(weights)})
            rows.clear()

    trainer._generate_single_turn, trainer._compute_loss = generate, see_pass
    trainer.add_callback(Recorder())
    trainer.train()
    if scale_out.RANK == 0:
        torch.save(steps, folder / f"{name}.pt")


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


# The gradients


PROMPTS = [row["prompt"] for row in engines.rows(P, seed=2, chat=False)]  # as scale_out.py's


@pytest.fixture(scope="module")
def rollout(base) -> Rollout:
    """G completions of each problem, by the base model, which is also the reference."""
    rollout = sample(*base, PROMPTS, G, T, 1.5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        rollout.old_logps = rollout.ref_logps = completion_logps(base[0], rollout, TEMPERATURE)
    return rollout


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rollout) -> Path:
    """Where two processes have written, at the end "run", a run of the program."""
    if find_spec("trl") is None or find_spec("datasets") is None:
        pytest.skip("pip install -e '.[scale]' to train with TRL")
    folder, groups = tmp_path_factory.mktemp("trained"), {prompt: [] for prompt in PROMPTS}
    for i, (ids, mask) in enumerate(zip(rollout.completion_ids, rollout.mask)):
        groups[PROMPTS[i // G]].append(ids[mask].tolist())
    (folder / "groups.json").write_text(json.dumps(groups), "utf-8")
    flags = "--num_processes=2 --main_process_port=0 --use_fsdp --fsdp_version=2"
    wrap = "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP"
    command = ["-m", "accelerate.commands.accelerate_cli", "launch", *flags.split(), wrap]
    modules = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))  # a process imports conftest
    end = python(*command, __file__, folder, PYTHONPATH=modules)
    assert end.returncode == 0, end.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", scale_out.ALGORITHMS)
def test_trl_trains_on_the_recorded_rows_with_the_gradient_of_the_script(folder, rollout, name):
    """At each step TRL's gradient is that of the script's own loss, on the rows and at the weights
    that TRL had, with the script's advantages times TRL's documented factors. In the second, which
    follows an update, the KL has a gradient. Every completion is there once, beside its own
    prompt."""
    steps = torch.load(folder / f"{name}.pt")
    rows = [PROMPTS[i // G] + text for i, text in enumerate(rollout.texts)]
    assert sorted(steps[0]["rows"] + steps[1]["rows"]) == sorted(rows)

    script, policy = SCRIPTS[name], load_policy()[0]
    config = script.Config(max_new_tokens=T, group_size=G, temperature=TEMPERATURE)
    answers = [row["answer"] for row in engines.rows(P, seed=2) for _ in range(G)]
    rewards = torch.tensor(engines.trl_reward([], rollout.texts, answers))
    if name in scale_out.OVERLONG:
        rewards = 2 * rewards - 1 + script.overlong_penalty(mask=rollout.mask, config=config)
    rewards = rewards.view(P, G)
    factor = 1 if name == "dr_grpo" else ddof_factor(rewards, 1e-4)
    advantages = (script.compute_advantages(rewards=rewards) * factor).view(-1, 1)
    for step in steps:  # two rows that are equal have equal advantages
        places = torch.tensor([rows.index(row) for row in step["rows"]])
        minibatch = rollout[places]
        vector_to_parameters(step["weights"], policy.parameters())
        minibatch.logps = completion_logps(policy, minibatch, TEMPERATURE)
        loss = script_loss(name, minibatch, advantages[places], config)
        if name in scale_out.OVERLONG:
            # TRL divides by the mean number of tokens of a minibatch, not by its own.
            loss = loss * minibatch.mask.sum() / (rollout.mask.sum() / len(steps))
        gradient = parameters_to_vector(torch.autograd.grad(loss, list(policy.parameters())))
        assert (step["gradient"] - gradient).norm() < 1e-4 * gradient.norm()


@pytest.mark.slow
def test_under_fsdp_the_program_leaves_a_whole_trained_model(base, folder):
    policy, _ = load_policy(str(folder / "run/checkpoint"))
    before, after = (parameters_to_vector(model.parameters()) for model in (base[0], policy))
    assert 1e-5 < (before - after).abs().max() < 1e-3
    assert json.loads((folder / "run/results.json").read_text("utf-8"))["processes"] == 2


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shard_on_cpus()
    for name in scale_out.ALGORITHMS:
        record(name, folder)
    config = {"steps": 1, "prompts_per_step": 4, "num_minibatches": 2, "warmup_steps": 0}
    scale_out.main(scale_out.Config(algorithm="dapo", run_dir=str(folder / "run"), **config))
    sys.stdout.flush()
    os._exit(0)  # as scale_out.py ends
