"""The task in the forms that TRL and verl take, called by TRL's and verl's own code.

GRPOTrainer samples from the shipped base model, trains on the rows and logs the rewards. verl reads
its options with its own configuration, the rows with its own dataset, and calls the function that
it has loaded itself. One thing is replaced: the server that verl, which samples on GPUs only, asks
for tokens.
"""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import build_tiny_model, is_right, value_of

from toy_env import arithmetic, engines
from toy_env.arithmetic import held_out_problems, is_held_out
from toy_env.model import BASE_MODEL, encode_prompts, load_policy, model_prompts

pytestmark = pytest.mark.filterwarnings("ignore")  # the engines' own, on import and in use
INSTALL_TRL = "pip install -e '.[parity]' to have TRL call the task"
INSTALL_VERL = (
    "pip install -e '.[parity]' && pip install --no-deps verl==0.9.1 to have verl call the task"
)
INSTALL_ROLLOUT = (
    "pip install aiohttp cachetools fastapi uvicorn opentelemetry-sdk, which verl's rollout imports"
)
# A chat template that makes the base model a chat model: it shows the problem and leaves the instruction out.
PROBLEM_ALONE = "{{ bos_token }}{{ messages[0].content.split('\n')[-1] }}"


def problem_of(prompt) -> str:
    """Of a row's or an engine's prompt: the problem, "29+46-36?"."""
    text = prompt if isinstance(prompt, str) else prompt[0]["content"]
    return [line for line in text.split("\n") if line.endswith("?")][-1]


def save_chat_model(folder) -> None:
    """The base model, which reads chat messages by the problem in them."""
    model, tokenizer = load_policy()
    tokenizer.chat_template = PROBLEM_ALONE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# The rows


@pytest.mark.parametrize("split, held_out", [("train", False), ("held_out", True)])
@pytest.mark.parametrize("chat", [True, False])
def test_rows_are_problems_of_their_split_with_the_right_answer(split, held_out, chat):
    arguments = {"levels": (2, 3, 4), "split": split, "chat": chat}
    rows = engines.rows(60, seed=5, **arguments)
    assert rows == json.loads(json.dumps(rows)) == engines.rows(60, seed=5, **arguments)
    assert [row["answer"] for row in rows] != [
        row["answer"] for row in engines.rows(60, seed=6, **arguments)
    ]
    assert {row["level"] for row in rows} == {2, 3, 4} and len(rows) == 60
    for index, row in enumerate(rows):
        problem = problem_of(row["prompt"])
        assert is_held_out(problem.removesuffix("?")) == held_out
        assert row["answer"] == value_of(problem) == int(row["reward_model"]["ground_truth"])
        assert row["level"] == len(problem.replace("-", "+").split("+")) - 1
        assert row["extra_info"] == {"split": split, "index": index, "level": row["level"]}


def test_held_out_rows_are_those_of_the_evaluation():
    rows = engines.rows(40, split="held_out", chat=False)
    assert [row["prompt"] for row in rows] == [problem.prompt for problem in held_out_problems(10)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"n": 10, "split": "held_out"}, "a multiple of 4"),
        ({"n": 4, "split": "test"}, "choose train, or held_out"),
        ({"n": 4, "levels": (5,)}, "level 5 does not exist"),
        ({"n": 768, "levels": (1,), "split": "held_out"}, "at most 767"),
    ],
)
def test_rows_that_do_not_exist(arguments, message):
    with pytest.raises(ValueError, match=message):
        engines.rows(**arguments)


@pytest.mark.parametrize("right", [39, "39", np.int64(39), "+039"])
def test_a_right_answer_may_be_a_number_or_a_text(right):
    assert [
        engines.compute_score("", text, right) for text in ("#39", "1#39", "#93", "39", "")
    ] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("right", [None, "", 39.5, "39.0", "x", True, [39]])
def test_a_right_answer_that_is_none_is_an_error_and_no_reward(right):
    with pytest.raises(ValueError, match="invalid literal for int"):
        engines.compute_score("", "#39", right)


# TRL


@pytest.fixture(scope="module")
def trl():
    pytest.importorskip("datasets", reason=INSTALL_TRL)
    return pytest.importorskip("trl", reason=INSTALL_TRL)


def build_trainer(trl, folder, model, tokenizer, rows: list[dict], **settings):
    from datasets import Dataset

    settings |= {
        "output_dir": str(folder),
        "max_steps": 2,
        "logging_steps": 1,
        "log_completions": True,
    }
    off = {
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
    }
    config = trl.GRPOConfig(use_cpu=True, disable_tqdm=True, **off, **settings)
    return trl.GRPOTrainer(
        model, engines.trl_reward, config, Dataset.from_list(rows), processing_class=tokenizer
    )


def logged(folder) -> list[dict]:
    """The completions and rewards that TRL wrote, a row each, in the order of the steps."""
    import pandas

    return [
        row
        for f in sorted(folder.glob("completions/*"))
        for row in pandas.read_parquet(f).to_dict("records")
    ]


@pytest.mark.parametrize("chat", [False, True])
def test_trl_trains_on_the_rows_and_logs_the_rewards_of_the_verifier(trl, tmp_path, chat):
    """The base model, which is right about a third of the time. Its completions are texts, or lists
    of one message."""
    tokenizer = load_policy()[1]
    tokenizer.chat_template = PROBLEM_ALONE if chat else None
    rows = engines.rows(16, seed=1, chat=chat)
    sizes = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 32}
    trainer = build_trainer(trl, tmp_path, str(BASE_MODEL), tokenizer, rows, **sizes)
    trainer.train()
    rewards = []
    for row in logged(tmp_path):
        completion = row["completion"]
        assert isinstance(completion, str) != chat
        text = completion[0]["content"] if chat else completion
        rewards.append(is_right(problem_of(row["prompt"]), text))
        assert row["trl_reward"] == rewards[-1]
    assert len(rewards) == 64 and 4 < sum(rewards) < 60
    means = [row["rewards/trl_reward/mean"] for row in trainer.state.log_history if "reward" in row]
    assert means == pytest.approx([np.mean(rewards[:32]), np.mean(rewards[32:])])


def test_a_chat_model_reads_under_trl_what_it_reads_in_the_scripts(trl, tmp_path, letters):
    """With a template that can switch thinking off."""
    from trl.chat_template_utils import qwen3_chat_template

    letters.chat_template = qwen3_chat_template
    letters.add_tokens(["<think>"])
    rows, plain = (engines.rows(8, seed=2, chat=chat) for chat in (True, False))
    no_thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    trainer = build_trainer(
        trl, tmp_path, build_tiny_model(len(letters)), letters, rows, **no_thinking
    )
    prompts = model_prompts(
        letters, [SimpleNamespace(prompt=row["prompt"]) for row in plain], arithmetic
    )
    ids, mask = encode_prompts(letters, prompts)
    theirs = trainer._tokenize_prompts([row["prompt"] for row in rows])[0]
    assert [row[keep].tolist() for row, keep in zip(ids, mask)] == theirs


# verl


@pytest.fixture(scope="module")
def verl():
    for module in ("ray", "tensordict", "omegaconf", "hydra", "datasets"):
        pytest.importorskip(module, reason=INSTALL_VERL)
    return pytest.importorskip("verl", reason=INSTALL_VERL)


@pytest.fixture
def verl_config(verl, tmp_path, monkeypatch):
    """verl's own settings, from its own files, changed by what a user writes on the command
    line."""
    from hydra import compose, initialize_config_module

    rows = engines.rows(7, seed=4)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    save_chat_model(tmp_path / "model")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def read(*more: str):
        options = [
            f"data.train_files={tmp_path}/train.jsonl",
            f"actor_rollout_ref.model.path={tmp_path}/model",
        ]
        options += [
            "data.filter_overlong_prompts=True",
            "reward.custom_reward_function.path=pkg://toy_env.engines",
            *more,
        ]
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", options)

    return read


def verl_rows(config, tokenizer):
    """The rows as a batch, as verl's trainer makes it of `data.train_files`."""
    from verl import DataProto
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.dataset.rl_dataset import collate_fn

    data = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    return DataProto.from_single_dict(collate_fn([data[i] for i in range(len(data))]))


def test_verl_samples_for_the_rows_and_scores_the_completions(verl_config):
    """verl's rollout, `AgentLoopWorker` with `RewardLoopWorker`, from the options alone; the base
    model stands in for the server on a GPU that would be asked for tokens."""
    agent_loop = pytest.importorskip(
        "verl.experimental.agent_loop.agent_loop", reason=INSTALL_ROLLOUT
    )
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.workers.rollout.replica import TokenOutput

    sizes = ("data.max_prompt_length=32", "data.max_response_length=32")
    config = verl_config("actor_rollout_ref.rollout.name=vllm", *sizes)
    policy, tokenizer = load_policy()
    torch.manual_seed(0)

    async def generate(request_id, prompt_ids, **others):
        ids = policy.generate(
            torch.tensor([prompt_ids]), do_sample=True, top_k=0, max_new_tokens=32
        )
        return TokenOutput(token_ids=ids[0, len(prompt_ids) :].tolist())

    async def sample():
        worker = RewardLoopWorker(config)
        handle = SimpleNamespace(
            compute_score=SimpleNamespace(remote=worker.compute_score)
        )  # as of a Ray actor
        loop = agent_loop.AgentLoopWorker(
            config, SimpleNamespace(generate=generate), None, [handle]
        )
        return await loop.generate_sequences(verl_rows(config, worker.input_tokenizer).repeat(4))

    out = asyncio.run(sample())
    prompts, texts = (
        tokenizer.batch_decode(out.batch[key], True) for key in ("prompts", "responses")
    )
    rewards = out.batch["rm_scores"].sum(dim=1).tolist()
    assert rewards == [is_right(problem_of(prompt), text) for prompt, text in zip(prompts, texts)]
    assert len(rewards) == 28 and 2 < sum(rewards) < 26
