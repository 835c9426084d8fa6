"""The task in the forms that TRL and verl take, called by TRL's and verl's own code.

GRPOTrainer samples from the shipped base model, trains on the rows and logs the rewards. verl reads
its options with its own configuration, the rows with its own dataset, and calls the function that
it has loaded itself.

Broken on purpose: rows, rewards or the environment handed over in another form.
"""

import asyncio
import json
from random import Random

import pytest
from conftest import INSTALL_VERL, ROOT, is_right, value_of

from lessons.experiments import engines
from toy_env.arithmetic import held_out_problems, is_held_out
from toy_env.model import BASE_MODEL, load_policy
from toy_env.tasks import TaskConfig, load_task

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, on import and in use
EXAMPLE = str(ROOT / "toy_env/questions.jsonl")
# A chat template for the base model: it shows the problem and leaves the instruction out.
PROBLEM_ALONE = "{{ bos_token }}{{ messages[0].content.split('\n')[-1] }}"


def problem_of(prompt) -> str:
    """The problem in a prompt, "29+46-36?"."""
    text = prompt if isinstance(prompt, str) else prompt[0]["content"]
    return [line for line in text.split("\n") if line.endswith("?")][-1]


# The rows


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("chat", [True, False])
def test_rows_are_problems_of_their_split_with_the_right_answer(split, chat):
    arguments = {"levels": (2, 3, 4), "split": split, "chat": chat}
    rows = engines.rows(60, seed=5, **arguments)
    assert (rows == engines.rows(60, seed=6, **arguments)) == (split == "held_out")
    assert {row["level"] for row in rows} == {2, 3, 4} and len(rows) == 60
    for row in rows:
        problem = problem_of(row["prompt"])
        assert is_held_out(problem.removesuffix("?")) == (split == "held_out")
        assert row["answer"] == value_of(problem) == int(row["reward_model"]["ground_truth"])


def test_held_out_rows_are_those_of_the_evaluation():
    rows = engines.rows(40, split="held_out", chat=False)
    assert [row["prompt"] for row in rows] == [problem.prompt for problem in held_out_problems(10)]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("arithmetic", "#{0.answer}"),
        ("expressions", "#{0.answer}+50-50"),
        ("questions", "It is {0.answer}."),
        ("lessons.experiments.sums", "{0.answer}"),
    ],
)
def test_any_task_travels(name, right):
    """Its rows are JSON, and completions are scored by the task that a row names, which is told of
    nothing but the row.

    Seen to fail: with arithmetic's verifier for all; with the answer of a question as a float."""
    task = load_task(TaskConfig(name, EXAMPLE if name == "questions" else ""))
    rows = json.loads(json.dumps(engines.rows(24, seed=1, task=task)))
    for row, problem in zip(rows, task.sample_problems(24, (), Random(1))):
        text = f"{task.INSTRUCTION}\n{problem.prompt}"  # as the scripts have it
        assert row["prompt"] == [{"role": "user", "content": text}]
        text, source = right.format(problem), row["data_source"]
        for answer, score in ((text, 1), (text + "7", 0)):
            truth = row["reward_model"]["ground_truth"]
            assert engines.compute_score(source, answer, truth) == score
            assert engines.trl_reward([], [answer], [row["answer"]], [source]) == [score]
    assert len(engines.rows(2 * len(task.LEVELS), split="held_out", task=task)) > 1


# TRL


@pytest.mark.parametrize("chat", [False, True])
def test_trl_trains_on_the_rows_and_logs_the_rewards_of_the_verifier(trl, spy, tmp_path, chat):
    """The base model, which is right about a third of the time. Its completions are texts, or lists
    of one message."""
    from datasets import Dataset

    tokenizer, calls = load_policy()[1], spy(engines, "trl_reward")
    tokenizer.chat_template = PROBLEM_ALONE if chat else None
    rows = engines.rows(16, seed=1, chat=chat)
    config = trl.GRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=32,
        num_generations=4,
        max_completion_length=32,
        max_steps=2,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data, model = Dataset.from_list(rows), str(BASE_MODEL)
    trainer = trl.GRPOTrainer(model, engines.trl_reward, config, data, processing_class=tokenizer)
    trainer.train()
    assert len(calls) == 2
    for call, logged in zip(calls, trainer.state.log_history):
        texts = [one[0]["content"] if chat else one for one in call.completions]
        rewards = [is_right(problem_of(p), text) for p, text in zip(call.prompts, texts)]
        assert call.result == rewards and 2 < sum(rewards) < 30
        assert logged["reward"] == pytest.approx(sum(rewards) / 32)


# verl


@pytest.mark.slow  # imports verl
def test_verl_reads_the_rows_and_scores_completions(tmp_path, monkeypatch):
    """verl's dataset and `RewardLoopWorker`, from the options that a user writes on the command
    line."""
    for module in ("verl", "ray", "tensordict", "omegaconf", "hydra", "datasets", "aiohttp"):
        pytest.importorskip(module, reason=INSTALL_VERL)
    from hydra import compose, initialize_config_module
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.dataset.rl_dataset import collate_fn

    rows, tokenizer = engines.rows(8, seed=4), load_policy()[1]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    tokenizer.chat_template = PROBLEM_ALONE
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    options = [
        f"data.train_files={tmp_path}/train.jsonl",
        f"actor_rollout_ref.model.path={tmp_path}",
        "data.filter_overlong_prompts=True",
        "data.max_prompt_length=32",
        "reward.custom_reward_function.path=pkg://lessons.experiments.engines",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", options)
    data = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    columns = collate_fn([data[i] for i in range(len(data))])
    assert [*columns["raw_prompt"]] == [row["prompt"] for row in rows]
    texts = [f"1#{row['answer'] + i % 2}" for i, row in enumerate(rows)]  # every other is right
    tokens = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
    columns |= {"responses": tokens.input_ids, "attention_mask": tokens.attention_mask}

    batch = DataProto.from_single_dict(columns)

    async def judge() -> list[dict]:
        return await RewardLoopWorker(config).compute_score_batch(batch)

    assert [judged["reward_score"] for judged in asyncio.run(judge())] == 4 * [1, 0]
