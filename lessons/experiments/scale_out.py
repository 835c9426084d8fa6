"""The same task, prompts and model through TRL's GRPOTrainer, on any number of processes.

    python lessons/experiments/scale_out.py --algorithm grpo accelerate launch --multi_gpu
    --num_processes 2 lessons/experiments/scale_out.py --algorithm dapo accelerate launch
    --config_file fsdp.yaml lessons/experiments/scale_out.py --trl bf16=true use_vllm=true

It needs pip install -e '.[scale]'. The defaults are those of algorithms/*.py: an optimizer step
sees the same number of completions on any number of processes, GPUs or, on a machine without, CPUs
(with --multi_gpu as well). The run folder gets the trained model (checkpoint) and results.json:
settings, TRL's log, and the held-out accuracy before and after training. Nothing is saved before
the end. When a run is refused or stopped, every process says why in one line, and `accelerate
launch` adds a report of its own. algorithms/OUTGROW.md lists what TRL computes differently.
"""

from toy_env import UsageError, reason, take_over_ctrl_c

if __name__ == "__main__":
    take_over_ctrl_c()

import ast
import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from toy_env.arithmetic import INSTRUCTION, LEVELS
from toy_env.checks import check_model
from toy_env.cli import above, at_least, run_main
from toy_env.engines import rows, trl_reward
from toy_env.evaluate import held_out_report, report_table
from toy_env.model import NO_THINKING, load_policy

ALGORITHMS: dict[str, dict[str, Any]] = {  # the options of TRL 1.16 that make up a script
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {
        "loss_type": "dapo",
        "epsilon_high": 0.28,
        "reward_weights": [2.0, 1.0],
    },  # 2 * reward + penalty
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 9e-3,
        "epsilon_high": 12e-3,
    },
    "cispo": {
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "reward_weights": [2.0, 1.0],
    },  # the largest ratio itself
}
OVERLONG = (
    "dapo",
    "cispo",
)  # these punish completions near the limit by a second reward, and have no KL term
RANK, PROCESSES = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


@dataclass
class Config:
    algorithm: str = "grpo"  # grpo, dr_grpo, dapo, gspo or cispo
    steps: at_least(1) = 60  # rollout batches
    seed: at_least(0) = 0  # seeds the problems and the sampling
    model: str = "base"  # base, a folder, or a causal language model on the Hugging Face hub
    run_dir: str = ""  # the run's folder; by default runs/scale_out-ALGORITHM-SEED
    prompts_per_step: at_least(1) = 32  # P, problems in a rollout batch, over all processes
    group_size: at_least(2) = 8  # G, completions sampled for each problem
    max_new_tokens: at_least(1) = 56  # length limit of a completion, in tokens
    temperature: at_least(1e-3) = 1.0  # sampling temperature
    num_minibatches: at_least(1) = 4  # optimizer steps for each rollout batch
    gradient_accumulation_steps: at_least(1) = (
        1  # passes over a process's minibatch; raise it to save memory
    )
    overlong_buffer: at_least(0, "max_new_tokens") = (
        8  # dapo, cispo: soft-penalty zone before the length limit, tokens
    )
    learning_rate: above(0.0) = 2e-4  # AdamW's step size after the warm-up
    warmup_steps: at_least(0) = 10  # rollout batches over which the learning rate rises linearly
    max_grad_norm: above(0.0) = 1.0  # maximum gradient norm
    levels: tuple[int, ...] = ()  # difficulties: number of operations, 1 to 4
    eval_problems: at_least(1) = 64  # held-out problems per level, before and after training
    trl: tuple[
        str, ...
    ] = ()  # further options of TRL's GRPOConfig, each NAME=VALUE, such as beta=0.01 use_vllm=true

    def check(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"TRL 1.16 has no trainer for {self.algorithm!r}; choose {', '.join(ALGORITHMS)}"
            )
        completions = self.prompts_per_step * self.group_size
        if completions % (
            parts := self.num_minibatches * PROCESSES * self.gradient_accumulation_steps
        ):
            raise UsageError(
                f"--prompts_per_step x --group_size, {completions} completions, must be a multiple of {parts}: "
                f"--num_minibatches x processes ({PROCESSES}) x --gradient_accumulation_steps"
            )
        self.run_dir = self.run_dir or f"runs/scale_out-{self.algorithm}-{self.seed}"
        if RANK == 0 and Path(self.run_dir).exists() and any(Path(self.run_dir).iterdir()):
            raise UsageError(f"run folder {self.run_dir!r} exists; choose another --run_dir")


def further_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """{"use_vllm": True} from ("use_vllm=true",). Raises UsageError for a text that is not
    NAME=VALUE."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--trl {text}: write NAME=VALUE, for example --trl use_vllm=true")
        try:
            options[name] = ast.literal_eval(
                value.capitalize() if value in ("true", "false") else value
            )
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


def build_trainer(config: Config, settings: dict[str, Any]):
    """TRL's trainer of the policy on steps x prompts_per_step problems, the same ones for any
    number of processes.

    Raises UsageError if TRL is not installed or does not take the settings.
    """
    try:
        from datasets import Dataset
        from transformers import PrinterCallback, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer
        from trl.rewards import get_soft_overlong_punishment
    except ImportError as error:
        raise UsageError(
            f"TRL is not available ({reason(error)}); pip install -e '.[scale]'"
        ) from None

    class Progress(TrainerCallback):
        def on_log(self, args, state, control, logs, **others) -> None:
            if state.is_world_process_zero and "reward" in logs:
                step, accuracy = (
                    state.global_step // config.num_minibatches,
                    logs["rewards/trl_reward/mean"],
                )
                print(
                    f"step {step}/{config.steps}  acc {accuracy:.2f}  len {logs['completions/mean_length']:.1f}"
                )

    rewards = [trl_reward]
    if config.algorithm in OVERLONG:
        rewards.append(get_soft_overlong_punishment(config.max_new_tokens, config.overlong_buffer))
    policy, tokenizer = load_policy(config.model)
    chat = bool(tokenizer.chat_template)
    problems = rows(
        config.steps * config.prompts_per_step, config.levels or LEVELS, config.seed, chat=chat
    )
    if (
        not chat and "a" in tokenizer.get_vocab()
    ):  # a general language model reads what model_prompts gives it
        problems = [row | {"prompt": f"{INSTRUCTION}\n{row['prompt']}"} for row in problems]
    try:
        data = Dataset.from_list(problems)
        trainer = GRPOTrainer(
            policy, rewards, GRPOConfig(**settings), data, None, tokenizer, callbacks=[Progress()]
        )
    except (ImportError, TypeError, ValueError) as error:
        raise UsageError(f"TRL does not take these settings: {reason(error)}") from error
    trainer.remove_callback(PrinterCallback)
    return trainer


def main(config: Config) -> None:
    """Evaluate, train with TRL, evaluate again. The first process prints and writes."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # about names that TRL uses
    settings = trl_settings(config, PROCESSES)
    trainer = build_trainer(config, settings)

    def report() -> dict:
        sampling = {
            "samples": 4,
            "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature,
        }
        return held_out_report(
            policy, tokenizer, problems=config.eval_problems, levels=config.levels, **sampling
        )[0]

    if RANK == 0:
        device = trainer.accelerator.device.type
        print(f"{config.algorithm} with TRL on {PROCESSES} x {device}, folder {config.run_dir}")
        if config.algorithm in OVERLONG:
            print(
                "TRL has no dynamic sampling: silent groups stay in the batch and have advantage 0"
            )
        policy, tokenizer = load_policy(config.model, trainer.accelerator.device)
        check_model(policy, tokenizer, config.max_new_tokens)
        before = report()
        policy.cpu()  # the training has the device to itself
    trainer.train()
    weights = trainer.accelerator.get_state_dict(
        trainer.model_wrapped
    )  # of all processes: the model may be sharded
    if RANK == 0:
        policy.load_state_dict(weights)
        for part in (
            policy,
            tokenizer,
        ):  # saved first: the device may have no room for a second model
            part.save_pretrained(Path(config.run_dir) / "checkpoint")
        policy.to(trainer.accelerator.device)
        after = report()
        print(f"\n{report_table(before, after)}")
        results = {
            "settings": asdict(config),
            "processes": PROCESSES,
            "trl": settings,
            "before": before,
        }
        results |= {"after": after, "log": trainer.state.log_history}
        (Path(config.run_dir) / "results.json").write_text(
            json.dumps(results, indent=1) + "\n", "utf-8"
        )
    trainer.accelerator.wait_for_everyone()  # for the first process, which evaluates
    trainer.accelerator.end_training()


if __name__ == "__main__":
    run_main(Config, main, __doc__)
    sys.stdout.flush()
    os._exit(
        0
    )  # Python's clean-up may abort in a thread of torch.distributed that holds tensors (PyTorch #179291)
