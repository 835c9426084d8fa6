"""The engine of lessons/group.html in Chromium: gradients against torch, whole steps against the
scripts, workers."""

import base64
import random

import numpy as np
import pytest
import torch
from conftest import metrics
from test_in_browser import SCRIPTS, opened

from lessons.float64 import to_float64
from lessons.page import build
from toy_env import arithmetic
from toy_env.model import encode_prompts, load_policy
from toy_env.rollout import Rollout, completion_logps

CRITIC = [name.replace("model.", "transformer.", 1) for name in build.TENSORS] + [
    "head.weight",
    "head.bias",
]
pytestmark = pytest.mark.slow

FUNCTIONS = """
globalThis.unpack = (text) => new Float64Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
globalThis.pack = (array) => btoa(Array.from(new Uint8Array(Float64Array.from(array).buffer),
    (byte) => String.fromCharCode(byte)).join(""));
globalThis.source = document.querySelector("#engine").textContent;
"""
GRADIENTS = """async ({ name, base, policy, critic, old_critic, groups, chosen }) => {
    const algorithm = { ...ALGORITHMS[name], group_size: 4 }, pool = new Pool();
    const trainer = new Trainer({ weights: unpack(base), algorithm, pool });
    trainer.policy.weights.set(unpack(policy));
    if (trainer.critic) trainer.critic.weights.set(unpack(old_critic));
    await trainer.addAdvantages(groups);
    if (trainer.critic) trainer.critic.weights.set(unpack(critic));
    const minibatch = chosen.map((i) => groups.flat()[i]), networks = [trainer.policy, trainer.critic].filter(Boolean);
    const results = await Promise.all(networks.map((network) => trainer.gradient(network, minibatch)));
    return results.map(({ gradient, loss, stopped }) => ({ gradient: pack(gradient), loss, stopped }));
}"""
STEPS = """async ({ name, settings, base, drawn, orders, type }) => {
    const weights = globalThis[type].from(unpack(base)), metrics = [];
    const trainer = new Trainer({ weights, algorithm: { ...ALGORITHMS[name], ...settings }, pool: new Pool() });
    trainer.collect = async () => drawn.shift();
    trainer.shuffle = (n) => orders.shift() ?? [...Array(n).keys()];
    while (drawn.length) metrics.push((await trainer.step()).metrics);
    return { metrics, weights: [trainer.policy, trainer.critic].filter(Boolean).map(({ weights }) => pack(weights)) };
}"""


@pytest.fixture(scope="module")
def console(browser):
    with opened(browser) as page:
        page.evaluate(FUNCTIONS)
        yield page


class Rotary(torch.nn.Module):
    """The angles of the rotary embedding in float64; those of transformers are float32 in every
    model."""

    def forward(self, x, position_ids):
        angles = position_ids[..., None] * 10000.0 ** (
            -torch.arange(0, 16, 2, dtype=torch.float64) / 16
        )
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def load_exactly(*_) -> tuple:
    """The shipped base model in float64, and its tokenizer."""
    policy, tokenizer = load_policy("base")
    policy.model.rotary_emb = Rotary()
    return to_float64(policy), tokenizer


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pack(network, names=build.TENSORS, gradient=False) -> str:
    """The weights of a network, or their gradient, in the order of the page."""
    tensors = dict(network.named_parameters())
    arrays = [
        (tensors[name].grad if gradient else tensors[name]).detach().numpy().ravel()
        for name in names
    ]
    return base64.b64encode(np.concatenate(arrays).astype(np.float64).tobytes()).decode()


unpack = lambda text: np.frombuffer(base64.b64decode(text))  # noqa: E731


def rows_of(rollout: Rollout, prompts: list[str], rewards: torch.Tensor) -> list[dict]:
    """A rollout as the page has it: groups of four rows, each as long as its completion."""
    columns, rows = (
        {"ids": rollout.completion_ids, "logps": rollout.logps, "entropies": rollout.entropies},
        [],
    )
    for i, (n, reward) in enumerate(
        zip(rollout.mask.sum(dim=1).tolist(), rewards.flatten().tolist())
    ):
        row = {name: column[i, :n].tolist() for name, column in columns.items()}
        rows.append(
            row
            | {"prompt": prompts[i // 4], "truncated": bool(rollout.truncated[i]), "reward": reward}
        )
    return [rows[i : i + 4] for i in range(0, len(rows), 4)]


def moved(network, scale: float):
    """The network with noise on every weight."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return network


def ragged_rollout(policy, tokenizer, noise: float) -> tuple[Rollout, list[str], torch.Tensor]:
    """Five groups of four completions of random tokens: of 1 to 56 tokens, in all more than is read
    in one pass, the first two cut at the length limit; two mixed groups, a silent one of each kind,
    and one more. Their old log-probabilities differ from the policy's."""
    rng = random.Random(0)
    prompts = [problem.prompt for problem in arithmetic.sample_problems(5, (), rng)]
    lengths = [56, 56, 1, 2, *(rng.randint(30, 55) for _ in range(16))]
    mask = torch.arange(56) < torch.tensor(lengths)[:, None]
    truncated = torch.tensor([True, True] + 18 * [False])
    ids = torch.tensor([[rng.randint(3, 18) for _ in range(56)] for _ in lengths])
    ids[torch.arange(20), torch.tensor(lengths) - 1] = torch.where(
        truncated, ids[:, -1], tokenizer.eos_token_id
    )
    zeros, encoded = (
        torch.zeros(mask.shape),
        encode_prompts(tokenizer, [one for one in prompts for _ in range(4)]),
    )
    rollout = Rollout(*encoded, ids * mask, mask, zeros, zeros, truncated, 20 * [""])
    rollout.logps = (
        completion_logps(policy, rollout, 1.0).detach() + noise * torch.randn(mask.shape)
    ) * mask
    rewards = torch.tensor(
        [[1, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 1]]
    ).double()
    return rollout, prompts, rewards


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_gradient_is_that_of_torch(console, in_float64, name):
    """To 1e-10 of the tensor's largest element, through the script's advantages and losses: a
    minibatch off-policy, of ragged rows in several passes, with clipped tokens, silent groups and
    truncated rows; the critic's gradient too."""
    script, config = SCRIPTS[name], SCRIPTS[name].Config()
    torch.manual_seed(0)
    (policy, tokenizer), reference = load_exactly(), load_exactly()[0]
    moved(policy, 0.02)
    rollout, prompts, rewards = ragged_rollout(policy, tokenizer, 1.5 if name == "CISPO" else 0.3)
    if name in ("DAPO", "CISPO"):  # as in a step: silent groups are left out
        kept = script.groups_to_keep(correct=rewards, config=config)
        rollout, prompts, correct = (
            rollout.groups(kept, 4),
            [prompts[i] for i in kept],
            rewards[kept],
        )
        shaped = (
            2 * correct - 1 + script.overlong_penalty(mask=rollout.mask, config=config).view(-1, 4)
        )
    else:
        correct = shaped = rewards
    groups = rows_of(rollout, prompts, correct)
    chosen = [0, *sorted(random.Random(0).sample(range(1, len(rollout)), len(rollout) - 3))]
    assert (
        name in ("DAPO", "CISPO") or rollout.mask[chosen].sum() > 4 * 128
    )  # a part takes several passes
    rollout.ref_logps = completion_logps(reference, rollout, 1.0).detach()
    weights = {"base": pack(reference), "policy": pack(policy)}
    if name == "PPO":
        critic = moved(script.Critic(policy), 0.05)
        weights["old_critic"] = pack(critic, CRITIC)
        rollout.values = critic(rollout).detach() * rollout.mask
        columns = {"old_logps": rollout.logps, "ref_logps": rollout.ref_logps, "mask": rollout.mask}
        rollout.advantages, rollout.returns = script.compute_advantages(
            rewards=shaped, values=rollout.values, **columns, config=config
        )
        weights["critic"] = pack(moved(critic, 0.004), CRITIC)
    else:
        rollout.advantages = script.compute_advantages(rewards=shaped).view(-1, 1)
    part = rollout[torch.tensor(chosen)]
    inputs = {"advantages": part.advantages, "mask": part.mask, "config": config}
    inputs |= {"old_logps": part.logps} if name != "REINFORCE" else {}
    inputs |= (
        {"ref_logps": part.ref_logps} if name not in ("REINFORCE", "PPO", "DAPO", "CISPO") else {}
    )
    expected = [
        (
            policy,
            build.TENSORS,
            script.policy_loss(logps=completion_logps(policy, part, 1.0), **inputs),
        )
    ]
    if name == "PPO":
        values = {
            "values": critic(part),
            "old_values": part.values,
            "returns": part.returns,
            "mask": part.mask,
        }
        expected.append((critic, CRITIC, script.value_loss(**values, config=config)))
    results = console.evaluate(
        GRADIENTS, weights | {"name": name, "groups": groups, "chosen": chosen}
    )
    for result, (network, names, loss) in zip(results, expected, strict=True):
        loss.backward()
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-10)
        wanted, got = unpack(pack(network, names, gradient=True)), unpack(result["gradient"])
        at = 0
        for tensor in map(dict(network.named_parameters()).get, names):
            here = slice(at, at := at + tensor.numel())
            largest = np.abs(wanted[here]).max()
            assert largest > 0 and np.abs(got[here] - wanted[here]).max() <= 1e-10 * largest
        assert at == len(got) == len(wanted)
    assert name in ("REINFORCE", "CISPO") or 0 < results[0]["stopped"] < part.mask.sum()


@pytest.mark.parametrize("name", SCRIPTS)
def test_five_steps_are_those_of_the_script(
    console, in_float64, name, monkeypatch, tmp_path, no_curves, spy
):
    """From the script's rollouts, in its order of rows, the page comes to its weights, to 1e-9 in
    float64 and 1e-4 in float32, and to its metrics; with two epochs, minibatches of unequal size
    and, in DAPO, silent groups to replace."""
    script, drawn, policies = SCRIPTS[name], [], []
    settings = {"prompts_per_step": 5, "group_size": 4, "learning_rate": 1e-3}
    settings |= {"epochs": 2, "num_minibatches": 3} if name != "REINFORCE" else {}
    collect = script.collect

    def recorded(run, policy, *rest):
        policies[:], problems = [policy], []
        monkeypatch.setattr(
            run, "prompts", lambda chosen: problems.extend(chosen) or [one.prompt for one in chosen]
        )
        rollout, rewards = collect(run, policy, *rest)
        drawn.append(rows_of(rollout, [problem.prompt for problem in problems], rewards))
        return rollout, rewards.double()

    monkeypatch.setattr(script, "collect", recorded)
    monkeypatch.setattr(script, "load_policy", load_exactly)
    critics, orders = spy(script, "Critic") if name == "PPO" else [], spy(torch, "randperm")
    base = pack(load_exactly()[0])
    script.train(
        script.Config(
            steps=5, eval_problems=1, device="cpu", run_dir=str(tmp_path / "run"), **settings
        )
    )
    expected = [pack(policies[0])] + [pack(call.result, CRITIC) for call in critics]
    orders = [call.result.tolist() for call in orders]
    given = {"name": name, "settings": settings, "base": base, "drawn": drawn, "orders": orders}
    for kind, most, share in (("Float64Array", 1e-9, 1e-6), ("Float32Array", 1e-4, 1e-3)):
        result = console.evaluate(STEPS, given | {"type": kind})
        for got, wanted in zip(result["weights"], expected, strict=True):
            start = unpack(base) if len(got) == len(base) else 0
            assert (
                np.abs(unpack(got) - unpack(wanted)).max()
                <= most
                < 5e-4
                < np.abs(unpack(wanted) - start).max()
            )
        for row, logged in zip(result["metrics"], metrics(tmp_path / "run"), strict=True):
            logged["clipped"] = logged.get("clipped_up", 0) + logged.get("clipped_down", 0)
            for metric in row.keys() - {"kl"} | row.keys() & logged.keys():
                assert row[metric] == pytest.approx(logged[metric], rel=share, abs=most), metric


TRAIN = """async ([workers, name]) => {
    const weights = sigmaLadder.base, pool = await Pool.open(workers, source);
    const algorithm = { ...ALGORITHMS[name], prompts_per_step: 3, group_size: 4 };
    const trainer = new Trainer({ weights, algorithm, pool, seed: 1 });
    const made = [await trainer.step(), await trainer.step()], metrics = made.map((step) => step.metrics);
    const prompts = made.map((step) => step.drawn.map((group) => group[0].prompt).join());
    const first = pack(trainer.policy.weights);
    trainer.takeBack(1);
    const steps = [trainer.steps, (await trainer.step()).metrics.step], again = pack(trainer.policy.weights);
    const honest = trainer.update.bind(trainer), poison = () => { trainer.policy.weights[5] = NaN; };
    trainer.update = (...given) => honest(...given).finally(poison);
    const error = await trainer.step().catch((error) => error.message), doers = pool.workers.length;
    const restored = pack(trainer.policy.weights) === again;
    pool.close();
    return { metrics, prompts, first, again, steps, doers, error, restored };
}"""


@pytest.mark.parametrize("name", ["GRPO", "PPO", "DAPO"])
def test_any_number_of_workers_gives_the_same_weights_and_steps_are_taken_back(console, name):
    """Also where the browser refuses workers. A step that is taken back and made again is the same;
    a training that diverges says so and is as it was before the step."""
    results = [console.evaluate(TRAIN, [workers, name]) for workers in (0, 1, 3)]
    console.evaluate("() => { globalThis.Honest = Worker; globalThis.Worker = null; }")
    results.append(console.evaluate(TRAIN, [2, name]))
    console.evaluate("() => { globalThis.Worker = Honest; }")
    assert [result["doers"] for result in results] == [0, 1, 3, 0]
    for result in results:
        assert (
            result["metrics"] == results[0]["metrics"]
            and result["first"] == results[0]["first"] == result["again"]
        )
        assert result["prompts"][0] != result["prompts"][1] and result["steps"] == [1, 2]
        assert result["restored"] and "not finite in step 3" in result["error"]


def test_states_are_kept_sparsely(console):
    """After 200 steps: the newest, a few of the older ones, and the first, from which training can
    go on."""
    script = """() => {
        const weights = new Float32Array(WEIGHTS), algorithm = ALGORITHMS.GRPO;
        const trainer = new Trainer({ weights, algorithm, pool: new Pool() });
        for (; trainer.steps < 200; trainer.keep()) trainer.steps++;
        return trainer.states.map((state) => state.steps); }"""
    assert console.evaluate(script) == [*range(0, 193, 16), *range(193, 201)]
