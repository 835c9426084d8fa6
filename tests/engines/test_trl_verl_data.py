"""The task in the forms that TRL and verl take, called by TRL's and verl's own code.

GRPOTrainer samples from the shipped base model, trains on the rows and logs the rewards. verl reads
its options with its own configuration, the rows with its own dataset, and calls the function that
it has loaded itself. verl samples on GPUs only: here the base model stands in for the server that
it asks for tokens.

Broken on purpose: rows, rewards or the environment handed over in another form.
"""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import INSTALL_TRL, INSTALL_VERL, build_tiny_model, is_right, value_of

from lessons.experiments import engines
from toy_env import arithmetic
from toy_env.arithmetic import held_out_problems, is_held_out
from toy_env.model import BASE_MODEL, encode_prompts, load_policy, model_prompts

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use
# A chat template for the base model: it shows the problem and leaves the instruction out.
PROBLEM_ALONE = "{{ bos_token }}{{ messages[0].content.split('\n')[-1] }}"


def problem_of(prompt) -> str:
    """The problem in a prompt, "29+46-36?"."""
    text = prompt if isinstance(prompt, str) else prompt[0]["content"]
    return [line for line in text.split("\n") if line.endswith("?")][-1]


# The rows


@pytest.mark.parametrize("split, held_out", [("train", False), ("held_out", True)])
@pytest.mark.parametrize("chat", [True, False])
def test_rows_are_problems_of_their_split_with_the_right_answer(split, held_out, chat):
    arguments = {"levels": (2, 3, 4), "split": split, "chat": chat}
    rows = engines.rows(60, seed=5, **arguments)
    assert rows == json.loads(json.dumps(rows))
    assert (rows == engines.rows(60, seed=6, **arguments)) == held_out  # always the same
    assert {row["level"] for row in rows} == {2, 3, 4} and len(rows) == 60
    for row in rows:
        problem = problem_of(row["prompt"])
        assert is_held_out(problem.removesuffix("?")) == held_out
        assert row["answer"] == value_of(problem) == int(row["reward_model"]["ground_truth"])
        assert row["level"] == len(problem.replace("-", "+").split("+")) - 1


def test_held_out_rows_are_those_of_the_evaluation():
    rows = engines.rows(40, split="held_out", chat=False)
    assert [row["prompt"] for row in rows] == [problem.prompt for problem in held_out_problems(10)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"n": 10, "split": "held_out"}, "a multiple of 4"),
        ({"n": 4, "split": "test"}, "choose train, or held_out"),
    ],
)
def test_rows_that_do_not_exist(arguments, message):
    with pytest.raises(ValueError, match=message):
        engines.rows(**arguments)


@pytest.mark.parametrize("truth", [39, "39", np.int64(39), "+039"])
def test_the_ground_truth_may_be_a_number_or_a_text(truth):
    scores = {"#39": 1, "1#39": 1, "#93": 0, "39": 0, "": 0}
    assert {text: engines.compute_score("", text, truth) for text in scores} == scores


@pytest.mark.parametrize("truth", [None, "", 39.5, True, [39]])
def test_a_ground_truth_that_is_no_integer_is_an_error(truth):
    with pytest.raises(ValueError, match="invalid literal for int"):
        engines.compute_score("", "#39", truth)


# TRL


@pytest.fixture(scope="module")
def trl():
    pytest.importorskip("datasets", reason=INSTALL_TRL)
    return pytest.importorskip("trl", reason=INSTALL_TRL)


def build_trainer(trl, folder, model, tokenizer, rows: list[dict], **settings):
    from datasets import Dataset

    settings |= {"max_steps": 2, "logging_steps": 1, "log_completions": True, "use_cpu": True}
    settings |= {"bf16": False, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    config = trl.GRPOConfig(str(folder), **settings)
    data = Dataset.from_list(rows)
    return trl.GRPOTrainer(model, engines.trl_reward, config, data, processing_class=tokenizer)


@pytest.mark.parametrize("chat", [False, True])
def test_trl_trains_on_the_rows_and_logs_the_rewards_of_the_verifier(trl, tmp_path, chat):
    """The base model, which is right about a third of the time. Its completions are texts, or lists
    of one message."""
    pandas = pytest.importorskip("pandas")
    tokenizer = load_policy()[1]
    tokenizer.chat_template = PROBLEM_ALONE if chat else None
    rows = engines.rows(16, seed=1, chat=chat)
    sizes = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 32}
    trainer = build_trainer(trl, tmp_path, str(BASE_MODEL), tokenizer, rows, **sizes)
    trainer.train()
    rewards = []
    for path in sorted(tmp_path.glob("completions/*")):
        for row in pandas.read_parquet(path).to_dict("records"):
            text = row["completion"][0]["content"] if chat else row["completion"]
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
    rows, model = engines.rows(8, seed=2), build_tiny_model(len(letters))
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    trainer = build_trainer(trl, tmp_path, model, letters, rows, **thinking)
    problems = [SimpleNamespace(prompt=problem_of(row["prompt"])) for row in rows]
    ids, mask = encode_prompts(letters, model_prompts(letters, problems, arithmetic))
    theirs = trainer._tokenize_prompts([row["prompt"] for row in rows])[0]
    assert [row[keep].tolist() for row, keep in zip(ids, mask)] == theirs


# verl


@pytest.mark.slow  # imports verl
def test_verl_samples_for_the_rows_and_scores_the_completions(tmp_path, monkeypatch, base):
    """verl's rollout, `AgentLoopWorker` with `RewardLoopWorker`, from the options that a user
    writes on the command line."""
    for module in ("verl", "ray", "tensordict", "omegaconf", "hydra", "datasets", "aiohttp"):
        pytest.importorskip(module, reason=INSTALL_VERL)
    from hydra import compose, initialize_config_module
    from verl import DataProto
    from verl.experimental.agent_loop import agent_loop
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.dataset.rl_dataset import collate_fn
    from verl.workers.rollout.replica import TokenOutput

    policy, tokenizer = base
    with (tmp_path / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in engines.rows(7, seed=4))
    policy.save_pretrained(tmp_path / "model")
    chat = load_policy()[1]
    chat.chat_template = PROBLEM_ALONE
    chat.save_pretrained(tmp_path / "model")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    options = [
        f"data.train_files={tmp_path}/train.jsonl",
        f"actor_rollout_ref.model.path={tmp_path}/model",
        "data.filter_overlong_prompts=True",
        "data.max_prompt_length=32",
        "data.max_response_length=32",
        "reward.custom_reward_function.path=pkg://lessons.experiments.engines",
        "actor_rollout_ref.rollout.name=vllm",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", options)
    torch.manual_seed(0)

    async def generate(request_id, prompt_ids, **others):
        settings = {"do_sample": True, "top_k": 0, "max_new_tokens": 32}
        ids = policy.generate(torch.tensor([prompt_ids]), **settings)
        return TokenOutput(token_ids=ids[0, len(prompt_ids) :].tolist())

    async def sample():
        scorer, server = RewardLoopWorker(config), SimpleNamespace(generate=generate)
        remote = SimpleNamespace(remote=scorer.compute_score)  # like a method of a Ray actor
        actor = SimpleNamespace(compute_score=remote)
        loop = agent_loop.AgentLoopWorker(config, server, None, [actor])
        files = config.data.train_files
        data = create_rl_dataset(files, config.data, scorer.input_tokenizer, None)
        batch = DataProto.from_single_dict(collate_fn([data[i] for i in range(len(data))]))
        return await loop.generate_sequences(batch.repeat(4))

    out = asyncio.run(sample())
    prompts, texts = (
        tokenizer.batch_decode(out.batch[key], True) for key in ("prompts", "responses")
    )
    rewards = out.batch["rm_scores"].sum(dim=1).tolist()
    assert rewards == [is_right(problem_of(prompt), text) for prompt, text in zip(prompts, texts)]
    assert len(rewards) == 28 and 2 < sum(rewards) < 26
