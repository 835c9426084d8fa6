"""The same task, prompts and model through TRL's GRPOTrainer, on any number of processes.

    python lessons/experiments/scale_out.py --algorithm grpo
    accelerate launch --multi_gpu --num_processes 2 lessons/experiments/scale_out.py \\
        --algorithm dapo
    accelerate launch --config_file fsdp.yaml lessons/experiments/scale_out.py \\
        --trl bf16=true use_vllm=true

It needs pip install -e '.[scale]'. The defaults are those of algorithms/*.py: an optimizer step
sees the same number of completions on any number of processes, GPUs or, on a machine without, CPUs
(with --multi_gpu as well). The run folder gets the trained model (checkpoint) and results.json,
settings and TRL's log; `python -m toy_env.evaluate` measures the accuracy of the model. Nothing is
saved before the end. When a setting is refused, every process says why in one line, and
`accelerate launch` adds a report of its own. algorithms/OUTGROW.md lists what TRL computes
differently.
"""

import ast
import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lessons.experiments.engines import rows, trl_reward
from toy_env.model import NO_THINKING, end_ids, load_policy
from toy_env.run import parse
from toy_env.tasks import TaskConfig, find_model, load_task

OVERLONG_REWARDS = [2.0, 1.0]  # weights: 2 * reward + penalty
ALGORITHMS = {  # the options of TRL 1.16 that make up a script
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "reward_weights": OVERLONG_REWARDS},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 9e-3,
        "epsilon_high": 12e-3,
    },
    # For CISPO epsilon_high is the largest ratio itself.
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0, "reward_weights": OVERLONG_REWARDS},
}
# These punish completions near the limit by a second reward, and have no KL term.
OVERLONG = ("dapo", "cispo")
RANK, PROCESSES = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@dataclass
class Config(TaskConfig):
    algorithm: str = "grpo"  # grpo, dr_grpo, dapo, gspo or cispo
    steps: int = 60  # rollout batches
    seed: int = 0  # seeds the problems and the sampling
    model: str = "base"  # base, a folder, or a causal language model on the Hugging Face hub
    run_dir: str = ""  # the run's folder; by default runs/scale_out-ALGORITHM-SEED
    prompts_per_step: int = 32  # P, problems in a rollout batch, over all processes
    group_size: int = 8  # G, completions sampled for each problem
    max_new_tokens: int = 56  # length limit of a completion, in tokens
    temperature: float = 1.0  # sampling temperature
    num_minibatches: int = 4  # optimizer steps for each rollout batch
    gradient_accumulation_steps: int = 1  # passes over a minibatch; raise it to save memory
    overlong_buffer: int = 8  # dapo, cispo: soft-penalty zone before the length limit, tokens
    learning_rate: float = 2e-4  # AdamW's step size after the warm-up
    warmup_steps: int = 10  # rollout batches over which the learning rate rises linearly
    max_grad_norm: float = 1.0  # maximum gradient norm
    levels: tuple[int, ...] = ()  # difficulties (arithmetic: 1 to 4 operations); none given: all
    trl: tuple[str, ...] = ()  # more options of TRL's GRPOConfig, such as beta=0.01 use_vllm=true


def check(config: Config) -> None:
    """SystemExit for settings that TRL could not train with, or a run folder in use."""
    if config.algorithm not in ALGORITHMS:
        names = ", ".join(ALGORITHMS)
        raise SystemExit(f"TRL 1.16 has no trainer for {config.algorithm!r}; choose {names}")
    completions = config.prompts_per_step * config.group_size
    parts = config.num_minibatches * PROCESSES * config.gradient_accumulation_steps
    if completions % parts:
        raise SystemExit(
            f"--prompts_per_step x --group_size, {completions} completions, must be a multiple of "
            f"{parts}: --num_minibatches x processes ({PROCESSES}) x --gradient_accumulation_steps"
        )
    config.run_dir = config.run_dir or f"runs/scale_out-{config.algorithm}-{config.seed}"
    if RANK == 0 and Path(config.run_dir).exists() and any(Path(config.run_dir).iterdir()):
        raise SystemExit(f"run folder {config.run_dir!r} exists; choose another --run_dir")


def further_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """{"use_vllm": True} from ("use_vllm=true",). SystemExit for a text that is not NAME=VALUE."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SystemExit(f"--trl {text}: write NAME=VALUE, for example --trl use_vllm=true")
        if value in ("true", "false"):
            value = value.capitalize()
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def trl_settings(config: Config, processes: int) -> dict[str, Any]:
    """The arguments of GRPOConfig: every default of TRL that differs from the scripts is set
    here."""
    share = config.prompts_per_step * config.group_size // config.num_minibatches // processes
    return {
        "output_dir": config.run_dir,
        "seed": config.seed,
        "max_steps": config.steps * config.num_minibatches,
        "num_generations": config.group_size,
        "per_device_train_batch_size": share // config.gradient_accumulation_steps,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "steps_per_generation": config.num_minibatches * config.gradient_accumulation_steps,
        "max_completion_length": config.max_new_tokens,
        "temperature": config.temperature,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": config.warmup_steps * config.num_minibatches,  # TRL counts optimizer steps
        "max_grad_norm": config.max_grad_norm,
        "epsilon": 0.2,
        "beta": 0.0 if config.algorithm in OVERLONG else 0.04,
        "use_bias_correction_kl": False,  # the scripts' KL is k3 alone
        "disable_dropout": True,
        "shuffle_dataset": False,
        "chat_template_kwargs": NO_THINKING,
        "bf16": False,
        "use_cpu": not (torch.cuda.is_available() or torch.backends.mps.is_available()),
        "gradient_checkpointing": False,
        "ddp_find_unused_parameters": False,
        "logging_steps": config.num_minibatches,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **ALGORITHMS[config.algorithm],
        **further_options(config.trl),
    }


def build_trainer(config: Config, settings: dict[str, Any], problems: list[dict] | None = None):
    """TRL's trainer of the policy on rows of a prompt and an answer each; without problems on
    steps x prompts_per_step of the task, the same ones for any number of processes. SystemExit if
    TRL is not installed."""
    try:
        from datasets import Dataset
        from transformers import GenerationConfig
        from trl import GRPOConfig, GRPOTrainer
        from trl.rewards import get_soft_overlong_punishment
    except ImportError as error:
        raise SystemExit(
            f"TRL is not available ({error}); type pip install -e '.[scale]'"
        ) from None

    rewards = [trl_reward]
    if config.algorithm in OVERLONG:
        rewards.append(get_soft_overlong_punishment(config.max_new_tokens, config.overlong_buffer))
    task = load_task(config)
    policy, tokenizer = load_policy(find_model(config.model, task))
    # Only special tokens are kept: penalties would change the distribution that is sampled.
    policy.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=end_ids(policy, tokenizer).tolist(),
    )
    if problems is None:
        n = config.steps * config.prompts_per_step
        problems = rows(n, config.levels, config.seed, task=task, tokenizer=tokenizer)
        for row in problems:
            # TRL lets the tokenizer write a BOS, also where the chat template has written one.
            if tokenizer(row["prompt"]).input_ids[:2] == 2 * [tokenizer.bos_token_id]:
                row["prompt"] = row["prompt"].removeprefix(tokenizer.bos_token)
    data, arguments = Dataset.from_list(problems), GRPOConfig(**settings)
    return GRPOTrainer(policy, rewards, arguments, data, None, tokenizer)


def main(config: Config) -> None:
    """Train with TRL. The first process prints and writes."""
    check(config)
    warnings.filterwarnings("ignore", category=FutureWarning)  # about names that TRL uses
    settings = trl_settings(config, PROCESSES)
    trainer, folder = build_trainer(config, settings), Path(config.run_dir)
    if RANK == 0:
        device = trainer.accelerator.device.type
        print(f"{config.algorithm} with TRL on {PROCESSES} x {device}, folder {folder}")
        if config.algorithm in OVERLONG:
            print("TRL has no dynamic sampling: silent groups stay, with advantage 0")
    trainer.train()
    # All processes take part: the model may be sharded.
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if RANK == 0:
        policy, tokenizer = load_policy(trainer.model.name_or_path)
        policy.load_state_dict(weights)
        policy.save_pretrained(folder / "checkpoint")
        tokenizer.save_pretrained(folder / "checkpoint")
        results = {"settings": asdict(config), "processes": PROCESSES, "trl": settings}
        results["log"] = trainer.state.log_history
        (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        evaluate = f"python -m toy_env.evaluate --task {config.task}"
        print(f"for its accuracy: {evaluate} --model {folder}/checkpoint")
    trainer.accelerator.wait_for_everyone()  # for the first process, which writes
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(parse(Config, __doc__))
    sys.stdout.flush()
    # Python's clean-up may abort in a thread of torch.distributed that holds tensors
    # (PyTorch #179291).
    os._exit(0)
