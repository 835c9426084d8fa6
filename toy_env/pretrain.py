"""Makes the base models that this repository ships: small transformers that imitate a student.

    python -m toy_env.pretrain      about 20 minutes on one CPU core
    python -m toy_env.pretrain --task expressions --out_dir runs/base_expressions      13 minutes
    python -m toy_env.pretrain --task my_project.my_task --out_dir runs/base_my_task

A task of your own brings its student along: a function demonstrate(problem, rng, diligent=False),
which writes a completion in the characters 0123456789+-?=;# and is diligent in the first half of
the steps.

The student of arithmetic mostly answers off the top of his head. He forgets to carry, and in long
chains he loses the thread, so most of these answers are wrong. Sometimes he works the problem out
step by step, and then he is nearly always right; the longer the problem, the more rarely he can be
bothered. A model that imitates him has success probabilities spread over the whole of 0..1, and
something for RL to discover: that working it out pays.

The student of expressions, asked for one with the value 39, writes any of 98 with two numbers, or
repeats it: so right answers are diverse, and wrong ones nearly always the same. How often he does
which depends on the last digit.
"""

import random
import re
from dataclasses import dataclass
from math import fmod
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from toy_env import arithmetic, expressions
from toy_env.arithmetic import MAX_TOTAL, Problem
from toy_env.run import parse
from toy_env.tasks import find_module

CHARACTERS = "0123456789+-?=;#"  # all that the model reads and writes
NO_LABEL = -100  # cross_entropy ignores this label

# The student, by probability.
WORKED = {1: 0.30, 2: 0.20, 3: 0.10, 4: 0.05}  # works a problem of this level out
WORKED_WHILE_LEARNING = 0.40  # ... during the first half of pretraining, when he is still diligent
SLIP = 0.02  # gets a written step wrong
FORGETS_CARRY = 0.90  # in his head, where an operation carries or borrows
# in his head, at the first, second, ... operation
LOSES_THREAD = (0.03, 0.20, 0.40, 0.60)
SLIPS = (-10, -1, 1, 10)
GUESSES = [miss for miss in range(-15, 16) if miss]  # how far off he is when he has lost the thread


@dataclass
class Config:
    task: str = "arithmetic"  # arithmetic, expressions, or a module of your own with a student
    steps: int = 14_000  # optimizer steps
    batch_size: int = 128  # demonstrations per step
    learning_rate: float = 2e-3  # AdamW's peak step size; 100 steps of warm-up, then linear decay
    seed: int = 0  # seeds the weights and the demonstrations
    out_dir: str = "runs/base_model"  # new folder for the model and its tokenizer


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One character, one token, after PAD, BOS and EOS (ids 0, 1, 2). Encoding puts BOS in
    front."""
    vocab = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 152,192 parameters, with the weights that the global torch seed gives."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def carries(total: int, n: int) -> bool:
    """True if adding the signed number n to the running total carries, or borrows."""
    return not 0 <= total % 10 + fmod(n, 10) <= 9


def demonstrate(problem: Problem, rng: random.Random, diligent: bool = False) -> str:
    """One completion of the sloppy student: worked, "29+46=75;75-36=39;#39", or direct, "#39",
    often wrong."""
    total, *operations = map(int, re.findall(r"[+-]?[0-9]+", problem.expression))
    if rng.random() < (WORKED_WHILE_LEARNING if diligent else WORKED[problem.level]):
        text = ""
        for n in operations:
            miss = rng.choice(SLIPS) if rng.random() < SLIP else 0
            result = min(max(total + n + miss, 0), MAX_TOTAL)
            text += f"{total}{n:+d}={result};"
            total = result  # a slip is carried on
        return f"{text}#{total}"
    misses = []
    for n, loses_thread in zip(operations, LOSES_THREAD):
        if carries(total, n) and rng.random() < FORGETS_CARRY:
            misses.append(-10 if n > 0 else 10)
        if rng.random() < loses_thread:
            misses.append(rng.choice(GUESSES))
        total += n
    miss = rng.choice(misses) if misses else 0  # one of his mistakes shows: two never cancel out
    return f"#{min(max(problem.answer + miss, 0), MAX_TOTAL)}"


def demonstrate_expression(
    problem: expressions.Problem, rng: random.Random, diligent: bool = False
) -> str:
    """One completion of the student of expressions: "#12+27", or "#39", which repeats the
    number."""
    target, most = problem.answer, expressions.MOST_OPERAND
    if rng.random() > (target % 10 + 0.5) / 10:
        return f"#{target}"
    first = rng.choice([n for n in range(1, most + 1) if n != target and abs(target - n) <= most])
    return f"#{first}{target - first:+d}"


# A task of your own has its student with it, a function `demonstrate`.
STUDENTS = {arithmetic: demonstrate, expressions: demonstrate_expression}


def completion_loss(model, tokenizer, demonstrations: list[tuple[str, str]]) -> torch.Tensor:
    """Sum over all completion tokens, EOS included, of -log p(token | prompt, tokens before it), in
    nats."""
    ids, labels = [], []
    for prompt, completion in demonstrations:
        row = [*tokenizer(prompt + completion).input_ids, tokenizer.eos_token_id]
        first = 1 + len(prompt)  # BOS and the prompt have no label: nobody has to predict them
        ids.append(torch.tensor(row))
        labels.append(torch.tensor([NO_LABEL] * first + row[first:]))
    ids = pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
    labels = pad_sequence(labels, batch_first=True, padding_value=NO_LABEL)
    # Padding is on the right, where causal attention never looks at it.
    logits = model(input_ids=ids).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def train(config: Config) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Imitate the student on training problems. The same config gives the same weights, bit for
    bit, on one machine."""
    task = find_module(config.task)
    student = STUDENTS.get(task) or task.demonstrate
    torch.manual_seed(config.seed)
    rng = random.Random(config.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
    bar = tqdm(range(1, config.steps + 1), desc="pretrain")
    for step in bar:
        decay = max(0.05, 1 - step / config.steps)
        optimizer.param_groups[0]["lr"] = config.learning_rate * min(1, step / 100) * decay
        diligent = step <= config.steps // 2
        problems = task.sample_problems(config.batch_size, task.LEVELS, rng)
        batch = [(problem.prompt, student(problem, rng, diligent)) for problem in problems]
        tokens = sum(len(completion) + 1 for _, completion in batch)
        # Worked and direct demonstrations go through apart: less padding halves the time of a step.
        for worked in (True, False):
            part = [pair for pair in batch if task.is_worked(pair[1]) == worked]
            if part:
                loss = completion_loss(model, tokenizer, part) / tokens
                loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)
    return model.eval(), tokenizer


def main(config: Config) -> None:
    """Train a base model and save it with its tokenizer."""
    folder = Path(config.out_dir)
    if folder.exists():
        raise SystemExit("this --out_dir exists; choose another")
    torch.set_num_threads(1)  # no slower at this size, and the same on any number of cores
    for part in train(config):
        part.save_pretrained(folder)
    print(f"Saved in {folder}; look at it with python -m toy_env.evaluate --model {folder}")


if __name__ == "__main__":
    main(parse(Config, __doc__))
