"""lessons/group.html and the site in a real browser: the page's model against torch, its numbers against the scripts,
controls, sliders, the widths of a phone and of a desk. Skipped without playwright and Chromium."""

import base64
import json
import random
import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo
from lessons import identity
from lessons.page import build
from lessons.site import drawn, sources, website
from toy_env import arithmetic
from toy_env.model import encode_prompts, load_policy

SCRIPTS = {
    "REINFORCE": reinforce, "PPO": ppo, "GRPO": grpo, "Dr. GRPO": dr_grpo, "DAPO": dapo,
    "RLOO": rloo, "MaxRL": maxrl, "GSPO": gspo, "CISPO": cispo,
}  # fmt: skip
NAMES = [build.BASE, *build.RUNS]
TENSORS = "(policy) => Object.values(policy).map((tensor) => Array.from(tensor))"  # in the order of build.TENSORS
pytestmark = pytest.mark.slow


@contextmanager
def opened(browser, path=build.PAGE, **settings):
    """A page in a window of its own. Fails at the end on errors in the console and requests for anything but files."""
    page, faults = browser.new_page(**settings), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: message.type in ("error", "warning") and faults.append(message.text))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on("request", lambda request: re.match("file:|data:|blob:", request.url) or faults.append(request.url))
    page.goto(path.as_uri())
    if path == build.PAGE:  # until the first group has its verdicts
        page.wait_for_function("document.querySelectorAll('#completions button').length === 8", timeout=20_000)
    yield page
    page.close()
    assert faults == []


@pytest.fixture
def page(browser):
    """group.html at its first eight completions."""
    with opened(browser) as page:
        yield page


@pytest.fixture(scope="module")
def console(browser):
    """group.html, for tests that only call its functions."""
    with opened(browser) as page:
        yield page


@pytest.fixture(scope="module")
def policies(console):
    """The page's policies as torch models in float64."""
    models = {}
    for name in NAMES:
        tensors = console.evaluate(f"(name) => ({TENSORS})(sigmaLadder.policies[name])", name)
        models[name] = load_policy("base")[0].double()
        state = models[name].state_dict()
        for key, tensor in zip(build.TENSORS, tensors, strict=True):
            state[key].copy_(torch.tensor(tensor).double().view_as(state[key]))
    return models


def call(page, function: str, *arguments):
    """The value of one of the page's functions."""
    return page.evaluate(f"(given) => sigmaLadder.{function}(...given)", arguments)


def logits_of(policy, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return policy(torch.tensor([ids])).logits[0]


# ---------------------------------------------------------------------- the model of group.html


def test_logits_are_those_of_torch(console, policies):
    """200 prompts, every other one with a worked completion, all positions, the seven policies; and the shipped base
    model in float32."""
    shipped, tokenizer = load_policy("base")
    for i, problem in enumerate(arithmetic.sample_problems(200, (), random.Random(0))):
        name, text = NAMES[i % len(NAMES)], problem.prompt + f"1+2=3;3-1=2;#{problem.answer}" * (i % 2)
        script = """([name, text]) => { const reader = new Reader(sigmaLadder.policies[name], 99), read = [];
            const ids = encode(text), parts = [ids.slice(0, 4), ids.slice(4, 5), ids.slice(5)];
            return parts.flatMap((part) => part.map((id) => reader.add(read, id)) && [...reader.read()]); }"""
        logits = np.array(console.evaluate(script, [name, text])).reshape(-1, 19)
        ids = encode_prompts(tokenizer, [text])[0][0].tolist()
        for policy in [policies[name]] + [shipped] * (name == build.BASE):
            assert np.abs(logits - logits_of(policy, ids).numpy()).max() < 1e-4  # torch computes the angles in float32


def test_weights_survive_packing(console):
    """The base exactly, other policies to half of a step in 8 bits, as the page's code reads them."""
    base = build.rows_of(load_policy("base")[0])
    rng = np.random.default_rng(0)
    others = [[tensor + rng.normal(0, 0.01, tensor.shape).astype(np.float32) for tensor in base] for _ in range(2)]
    packed = base64.b64encode(build.pack(base, others)).decode()
    reader = re.sub(r"^export ", "", (build.SOURCES / "model.js").read_text("utf-8"), flags=re.MULTILINE)
    read = f"(packed) => {{ {reader}; return Object.values(readPolicies(packed, ['a', 'b', 'c'])).map({TENSORS}); }}"
    first, *policies = console.evaluate(read, packed)
    assert all(np.array_equal(tensor.ravel(), values) for tensor, values in zip(base, first, strict=True))
    for other, policy in zip(others, policies, strict=True):
        for a, b, values in zip(base, other, policy, strict=True):
            most = np.abs(b - a).max(axis=1, keepdims=True) / 254 + 1e-7
            assert (np.abs(b - np.reshape(values, b.shape)) <= most).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_completion_drawn_from_fixed_random_numbers_is_that_of_torch(console, policies, name):
    rng, prompt = random.Random(name), "29+46-36?"
    numbers = [rng.random() for _ in range(3 * 56)]
    script = """([name, prompts, numbers]) =>
        [...complete(sigmaLadder.policies[name], prompts, () => numbers.shift())].pop().map((row) => row.ids)"""
    completions = console.evaluate(script, [name, 3 * [prompt], numbers])
    tokenizer = load_policy("base")[1]
    start = encode_prompts(tokenizer, [prompt])[0][0].tolist()
    expected, remaining = [[], [], []], iter(numbers)
    for _ in range(56):
        for ids in expected:
            if ids[-1:] != [tokenizer.eos_token_id]:
                sums = logits_of(policies[name], start + ids)[-1].softmax(dim=0).cumsum(dim=0)
                ids.append(min(int((sums <= next(remaining)).sum()), 18))
    assert completions == expected


def test_the_verifier_and_the_problems_are_those_of_the_task(console):
    rng = random.Random(0)
    completions = ["".join(rng.choices("0123456789+-=;##", k=rng.randint(0, 9))) for _ in range(500)]
    answers = console.evaluate("(all) => all.map(sigmaLadder.answer)", completions)
    assert answers == [arithmetic.extract_answer(completion) for completion in completions]
    assert sum(answer is not None for answer in answers) > 50
    problems = console.evaluate("[...Array(300).keys()].map((i) => sigmaLadder.drawProblem(sigmaLadder.stream(i)))")
    values = console.evaluate("(all) => all.map(sigmaLadder.value)", problems)
    assert {len(re.findall("[+-]", expression)) for expression in problems} == {1, 2, 3, 4}
    for expression, value in zip(problems, values):
        totals = [total for _, total in arithmetic.steps(arithmetic.Problem(expression, 0, 0))]
        operands = [int(x) for x in re.findall(r"\d+", expression)]
        assert value == totals[-1] == eval(expression) and min(totals) >= 0 and max(totals) <= 99
        assert min(operands) >= 1 and max(operands) <= 50 and len(totals) <= 4
    wrong = ["", "12", "12+", "12+51", "5-6", "50+50", "1+1+1+1+1+1", "1*2", "01+2", "2+0", "a"]
    assert console.evaluate("(all) => all.map(sigmaLadder.value)", wrong) == [None] * len(wrong)


# ---------------------------------------------------------------------- the algorithms of group.html


@pytest.mark.parametrize("name", SCRIPTS)
def test_pushes_are_the_gradient_of_the_script(console, name):
    """Advantages against compute_advantages, the weight of each token against autograd through policy_loss, and the
    update's coefficient against the sums of both kinds of advantages, on either side of the clip's edges and cap."""
    rng, script = random.Random(name), SCRIPTS[name]
    config = script.Config(**({"kl_coef": 0.0} if hasattr(script.Config, "kl_coef") else {}))
    low, high = (getattr(config, f"clip_eps{side}", getattr(config, "clip_eps", 0.1)) for side in ("_low", "_high"))
    edges = [1 - low, 1 + high, getattr(config, "max_ratio", 5)]
    seen = set()
    for ratio in 3 * [0.5, 1.0, 1.1, 3.0, *(edge + step for edge in edges for step in (-0.001, 0.001))]:
        G = rng.choice([2, 3, 8])
        verdicts, lengths = [int(rng.random() < 0.5) for _ in range(G)], [rng.randint(1, 56) for _ in range(G)]
        rewards = torch.tensor([verdicts]).double()
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        old = torch.full(mask.shape, -1.0).double()
        logps = (old + np.log(ratio)).requires_grad_()
        inputs = {"logps": logps, "mask": mask, "config": config}
        if name == "PPO":
            values = torch.full(mask.shape, rewards.mean().item()).double() * mask
            advantages, _ = script.compute_advantages(
                rewards=rewards, values=values, old_logps=old, ref_logps=None, mask=mask, config=config
            )
        else:
            if name in ("DAPO", "CISPO"):
                rewards = 2 * rewards - 1 + script.overlong_penalty(mask=mask, config=config)
            advantages = script.compute_advantages(rewards=rewards).view(-1, 1)
            if name in ("DAPO", "CISPO") and sum(verdicts) in (0, G):
                assert len(script.groups_to_keep(correct=torch.tensor([verdicts]), config=config)) == 0
                advantages = torch.zeros(G, 1).double()
            sums = {"right": 0.0, "wrong": 0.0}
            for A, verdict in zip(advantages[:, 0].tolist(), verdicts):
                sums["right" if verdict else "wrong"] += A / G
            assert call(console, "coefficients", name, verdicts, lengths) == pytest.approx(sums, abs=1e-6)
        if name != "REINFORCE":
            inputs |= {"old_logps": old}
        if name not in ("REINFORCE", "PPO", "DAPO", "CISPO"):
            inputs |= {"ref_logps": None}
        (gradient,) = torch.autograd.grad(script.policy_loss(advantages=advantages, **inputs), logps)
        rows = call(console, "pushes", name, verdicts, lengths, ratio)
        for row, weights, A, n in zip(rows, -gradient, advantages.expand(-1, mask.shape[1]), lengths):
            assert row["advantage"] == pytest.approx(A[:n].mean().item(), abs=1e-6)
            assert [token["weight"] for token in row["tokens"]] == pytest.approx(weights[:n].tolist(), abs=1e-6)
            for token, a, weight in zip(row["tokens"], A, weights):
                assert token["stopped"] == bool(a != 0 and weight == 0)
                seen.add(token["stopped"])
    assert seen == ({False} if name in ("REINFORCE", "CISPO") else {False, True})


# ---------------------------------------------------------------------- group.html in a reader's hands


def count(page) -> str:
    return page.locator("#count").inner_text()


def right_ones(page) -> int:
    return int(re.search(r"k = (\d)", count(page))[1])


def shown(page) -> tuple[str, list[int], list[int], list[str]]:
    """The problem, and of each completion: whether it counts as right, its length, its text without the end."""
    rows = page.locator("#completions li").all()
    letters = ["".join(row.locator(".tokens i").all_inner_texts()) for row in rows]
    rewards = [int("right" in row.locator("button").inner_text()) for row in rows]
    expression = count(page).split(" = ")[0]
    return expression, rewards, [len(text) for text in letters], [text.removesuffix("∎") for text in letters]


def choose(page, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).check()


def wait_until_written(page) -> None:
    page.wait_for_function("document.querySelector('#group').getAttribute('aria-busy') === 'false'")


def flip_all(page, colour: str) -> None:
    """Flip every verdict of one colour: "up" for the right ones, "down" for the wrong ones."""
    verdict = f"document.querySelector('#completions .{colour}')"
    page.evaluate(f"while ({verdict}) {verdict}.click()")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_verdicts_are_those_of_the_verifier(page):
    for policy in ("base model", "GRPO, after 20 of 60 steps"):
        page.locator("#policy").select_option(policy)
        for _ in range(3):
            page.get_by_role("button", name="Draw another").click()
            wait_until_written(page)
            expression, rewards, _, completions = shown(page)
            problem = arithmetic.Problem(expression, eval(expression), 0)
            assert rewards == [arithmetic.reward(problem, completion) for completion in completions]
            assert count(page).startswith(f"{expression} = {eval(expression)}; {policy}: k = {sum(rewards)} of")


def test_flipping_a_verdict_changes_the_update_and_comes_back(page):
    k = right_ones(page)
    first = page.locator("#completions button").first
    right = "right" in first.inner_text()
    before = page.locator("#completions li").nth(5).locator(".amount").inner_text()
    first.focus()
    page.keyboard.press("Space")
    assert f"k = {k - 1 if right else k + 1} of" in count(page) and "flipped by you" in count(page)
    assert page.locator("#completions li").nth(5).locator(".amount").inner_text() != before
    assert page.evaluate("document.activeElement.dataset.row") == "0"  # the keyboard stays where it was
    page.keyboard.press("Space")
    assert f"k = {k} of" in count(page) and "flipped" not in count(page)


@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO", "DAPO"])
def test_texts_and_colours_show_what_the_script_computes(page, name):
    """The marked code; for every k: the advantages in the rows, the sums in the text and the bars, and which tokens go
    which way."""
    choose(page, name)
    new = {"GRPO": "/ sigma", "Dr. GRPO": "no / sigma", "DAPO": "dynamic sampling"}[name]
    assert any(new in line for line in page.locator("#code .plus").all_inner_texts())
    assert (page.locator("#code .minus").count() > 0) == (name != "GRPO")
    for k in range(1, 8):
        while right_ones(page) != k:
            verdict = "wrong" if right_ones(page) < k else "right"
            page.locator(f"#completions button:has-text('{verdict}')").first.click()
        rewards = shown(page)[1]
        A = SCRIPTS[name].compute_advantages(rewards=torch.tensor([rewards]).double())[0].tolist()
        amounts = [text.removeprefix("A = ") for text in page.locator(".amount").all_inner_texts()]
        assert [number(text) for text in amounts] == pytest.approx(A, abs=0.00501)
        size = sum(a for a, R in zip(A, rewards) if R) / 8
        bars = page.locator("svg.bars text").all_text_contents()
        assert bars == [f"coefficient: right +{size:.3f}", f"wrong −{size:.3f}"]
        blue, orange = (float(page.locator("svg.bars rect").nth(i).get_attribute("x")) for i in (0, 1))
        assert orange < blue and "--up)" in page.locator("svg.bars rect").first.get_attribute("style")
        text = page.locator("#told p").inner_text()
        if name != "DAPO":
            assert float(re.search(r"σ²? = \+([\d.]+)", text)[1]) == pytest.approx(size, abs=5.01e-4)
        assert text.startswith(name) and amounts[rewards.index(1)] in text
        for row, R in zip(page.locator("#completions li").all(), rewards):
            script = "(all) => all.map((i) => i.className + i.style.background.slice(0, 12))"
            assert set(row.locator(".tokens i").evaluate_all(script)) == {"posrgb(var(--up" if R else "negrgb(var(--do"}


def test_blocks_and_cards_show_the_pushes_at_the_ratio(page):
    """Every block of every card: crossed out, empty, or of the colour and fullness of its push."""
    for position in ("0", "24", "-60", "180"):
        page.locator("#ratio").fill(position)
        _, rewards, lengths, _ = shown(page)
        ratio = float(np.exp(int(position) / 100))
        assert page.locator("#ratio-out").inner_text() == f"{ratio:.3f}" == page.locator("#ratio-too").inner_text()
        for card in page.locator("#cards article").all():
            name, text = card.get_attribute("data-name"), card.inner_text()
            rows, full = call(page, "pushes", name, rewards, lengths, ratio), call(page, "fullColour", name)
            tokens = [token for row in rows for token in row["tokens"]]
            fills = card.locator(".block").evaluate_all("(all) => all.map((block) => block.style.fill)")
            for fill, weight in zip(fills, [token["weight"] for token in tokens], strict=True):
                colour = r"rgb\(var\(--(\w+)-rgb\) / calc\(0.1 \+ .* \* ([\d.]+)\)\)|transparent"
                side, share = re.fullmatch(colour, fill).groups()
                assert side == ("up" if weight > 0 else "down" if weight < 0 else None)
                assert float(share or 0) == pytest.approx(min(1, abs(weight) / full), abs=1e-3)
            for kind, reward in (("right", 1), ("wrong", 0)):
                pushed = sum(token["weight"] for row, R in zip(rows, rewards) if reward == R for token in row["tokens"])
                printed = re.search(rf"all tokens:.*{kind} ([+−]?[\d.]+)", text)[1]
                assert number(printed) == pytest.approx(pushed, abs=5.01e-4)
            stopped = sum(token["stopped"] for token in tokens)
            assert card.locator(".stopped").count() == stopped
            assert name in ("REINFORCE", "CISPO") or f"{stopped} of {len(tokens)} tokens stopped" in text
    track = page.locator("#ratio").bounding_box()
    page.mouse.move(track["x"] + track["width"] - 4, track["y"] + track["height"] / 2)  # the handle, at 180
    page.mouse.down()
    seen = set()
    for share in (0.8, 0.6, 0.4, 0.2):
        page.mouse.move(track["x"] + track["width"] * share, track["y"] + track["height"] / 2)
        seen.add(page.locator("#ratio-out").inner_text() + page.locator("#cards").inner_html())
    page.mouse.up()
    assert len(seen) == 4, "the cards follow a drag"
    page.locator("#ratio").focus()
    page.keyboard.press("Home")
    assert page.locator("#ratio-out").inner_text() == "0.497"


def test_a_silent_group_is_announced_and_dapo_draws_until_one_is_mixed(page):
    flip_all(page, "up")
    assert "The group is silent" in page.locator("#told").inner_text() and page.locator("svg.bars").count() == 0
    assert page.locator("#cards .silent").count() == 9  # REINFORCE too: nothing is right
    assert page.evaluate("[...document.querySelectorAll('.tokens i')].every((i) => i.className === '')")
    choose(page, "DAPO")
    page.locator("#policy").select_option("DAPO, after 60 steps")  # most of its groups are silent
    page.wait_for_function("document.querySelector('#count').textContent.includes('DAPO')")
    for _ in range(3):
        flip_all(page, "down")
        page.get_by_role("button", name="Draw problems until").click()
        page.wait_for_function("document.querySelector('#told').textContent.includes('drawn')", timeout=20_000)
        more, completions = map(int, re.findall(r"\d+", page.locator("#told p").first.inner_text()))
        assert 0 < right_ones(page) < 8 and completions == 8 * more
        assert page.locator("#problem").input_value() == shown(page)[0]


def test_the_dial_opens_after_a_guess_and_shows_the_closed_forms(page):
    assert page.locator("#open").is_hidden()
    page.get_by_role("button", name="larger").click()
    assert page.locator("#open").is_visible() and page.locator("#verdict").inner_text().startswith("About two thirds")
    for G, k, p, v, contrast in ((8, 1, 12, 23, 8), (32, 20, 50, 0, 20), (3, 1, 90, 50, -20), (4, 3, 30, -20, 0)):
        for name, position in {"G": G, "k": k, "p": p, "v": v, "contrast": contrast}.items():
            page.locator(f"#dial-{name}").fill(str(position))
        noise, signal, p = *(float(f"{10 ** (x / 20):.2g}") for x in (v, contrast)), p / 100
        length, half = (identity.update_norm_squared(i, G, signal, 1.0, noise) ** 0.5 for i in (k, G // 2))
        sigma = float(identity.sigma(k, G))
        expected = [sigma, sigma**2, length / half, length, identity.weight("GRPO", p, G)]
        expected += [identity.weight("GRPO", 0.5, G), (G - 1) / G, identity.silent_rate(p, G), identity.fidelity(p, G)]
        text = " ".join(page.locator("#numbers dd").all_inner_texts()).replace("at p = ½", "").replace("at k = ", "k")
        numbers = [float(x) for x in re.findall(r"(?<![k\d.])\d+\.?\d*", text.replace("under 0.001", "0"))]
        assert numbers == pytest.approx([float(x) for x in expected], abs=1e-3)
        spoken = [svg.get_attribute("aria-label") for svg in page.locator("#plots svg").all()]
        assert len(spoken) == 3 and f"at k = {k} GRPO's is {round(sigma, 3):g}" in spoken[0]
        for i, power in enumerate((1, 2)):  # sigma and sigma squared over k: 198 units of height for .8
            line = page.locator("#plots figure").first.locator("path").nth(i).get_attribute("d")
            heights = [(212 - float(point.split(",")[1])) * 0.8 / 198 for point in re.split("[ML]", line)[1:]]
            assert heights == pytest.approx([float(identity.sigma(i, G)) ** power for i in range(G + 1)], abs=1e-3)
    page.locator("#dial-k").focus()
    page.keyboard.press("End")
    page.locator("#dial-G").focus()
    page.keyboard.press("Home")  # G = 2: k may not stay at 4
    assert [page.locator(f"#dial-{name}-out").inner_text() for name in ("G", "k")] == ["2", "2"]
    assert page.locator("#dial-k").get_attribute("aria-valuetext") == "2"
    flat = page.locator("#plots figure").nth(1).locator("path").nth(1).get_attribute("d")  # GRPO's weight over p
    assert len({point.split(",")[1] for point in re.split("[ML]", flat)[1:]}) == 1


def test_what_is_no_problem_is_refused_and_leaves_the_group(page):
    before, problem = count(page), page.locator("#problem")
    problem.fill("8*9")
    page.keyboard.press("Enter")
    assert "Not a problem of this task" in page.locator("#refused").inner_text() and count(page) == before
    page.locator("#policy").select_option("GRPO, after 60 steps")  # writes the old problem's group
    page.evaluate("document.querySelector('#problem').value = '8*9'; document.querySelector('#go').click()")  # at once
    page.wait_for_function("document.querySelector('#count').textContent.includes('GRPO, after 60')")
    problem.fill(" 8+9-3? ")
    page.get_by_role("button", name="Write 8 completions").click()
    page.wait_for_function("document.querySelector('#count').textContent.includes('8+9-3 = 14')")
    assert page.locator("#refused").inner_text() == ""
    page.evaluate("for (const button of ['#draw', '#draw', '#go']) document.querySelector(button).click()")
    wait_until_written(page)
    page.wait_for_timeout(300)
    assert page.locator("#problem").input_value() == shown(page)[0]  # the last request, and no other beside it


def test_drawing_until_mixed_gives_way_to_the_reader(page):
    flip_all(page, "up")
    choose(page, "DAPO")
    page.evaluate(
        "document.querySelector('#told button').click(); document.querySelector('#problem').value = '8+9-3';"
        "document.querySelector('#go').click()"
    )
    wait_until_written(page)
    page.wait_for_timeout(500)
    assert "8+9-3 = 14" in count(page) and "drawn" not in page.locator("#told").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only(browser, scheme):
    with opened(browser, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        page.get_by_role("button", name="larger").click()
        page.locator("#policy").select_option("PPO, after 60 steps")  # long completions
        page.wait_for_function("document.querySelector('#count').textContent.includes('PPO')")
        for name in ("GRPO", "Dr. GRPO", "DAPO"):
            choose(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("[...document.querySelectorAll('svg')].every((svg) => svg.getAttribute('aria-label'))")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark")


PICTURES = """async () => { let pictures = 0;
  new MutationObserver(() => pictures++).observe(document.querySelector("#completions"), { childList: true });
  document.querySelector("#go").click();
  do await new Promise(requestAnimationFrame);
  while (document.querySelector("#group").getAttribute("aria-busy") === "true");
  return pictures }"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_completions_appear_token_by_token_or_at_once_for_readers_who_want_no_motion(browser, motion):
    with opened(browser, reduced_motion=motion) as page:
        longest = max(shown(page)[2])
        pictures = page.evaluate(PICTURES)
        assert pictures == 1 if motion == "reduce" else pictures > longest / 4
        assert right_ones(page) == sum(shown(page)[1])


# ---------------------------------------------------------------------- the site

DRAWN_LESSONS = sources.find_sources((0, 13))
LOADED = """async () => ({
  pictures: await Promise.all([...document.images].map((image) => image.decode())).then(() => true, () => false),
  formulas: [...document.querySelectorAll("math")].every((math) => math.getBoundingClientRect().height > 4) })"""
REDRAWN = "([image, before]) => image.currentSrc && image.currentSrc !== before && image.complete"
# The SVG that an image shows, as text; the address of a file, which a page may not read.
CONTENT = (
    "async (image) => image.currentSrc.startsWith('blob:') ? (await fetch(image.currentSrc)).text() : image.currentSrc"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site with the pictures of lessons 0 and 13 drawn: its folder, and these pictures."""
    pytest.importorskip("latex2mathml", reason="the site needs latex2mathml: pip install -e '.[page]'")
    folder = tmp_path_factory.mktemp("site")
    pictures = drawn.draw_lessons(DRAWN_LESSONS)
    return website.write_site(sources.reading_order(), folder, pictures).parent, pictures


def test_pages_fit_the_window_and_show_pictures_and_formulas(browser, site):
    """At the width of a phone and of a desk, with everything unfolded."""
    folder, _ = site
    with opened(browser, folder / "index.html") as page:
        for path in sorted(folder.rglob("*.html")):
            page.goto(path.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach((details) => details.open = true)")
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 850})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path.name} at {width}"
            assert page.evaluate(LOADED) == {"pictures": True, "formulas": True}, path.name


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("source", DRAWN_LESSONS, ids=lambda source: source.stem)
def test_every_slider_changes_its_picture(browser, site, source, width):
    folder, pictures = site
    pictures = pictures[source]["narrow" if width == 390 else "wide"]
    with opened(browser, folder / f"{source.stem}.html", viewport={"width": width, "height": 850}) as page:
        for figure in page.query_selector_all("figure[data-picture]"):
            picture = pictures[int(figure.get_attribute("data-picture"))]
            image, inputs = figure.query_selector("img"), figure.query_selector_all("input")
            assert inputs and all(slider.is_visible() for slider in inputs)
            seen = {page.evaluate(CONTENT, image)}
            for slider in inputs:
                values = json.loads(slider.get_attribute("data-values"))
                before, start = image.evaluate("(image) => image.currentSrc"), int(slider.input_value())
                slider.focus()
                page.keyboard.press("ArrowRight" if start + 1 < len(values) else "ArrowLeft")
                page.wait_for_function(REDRAWN, arg=[image, before])
                content = page.evaluate(CONTENT, image)
                assert content not in seen, "this position shows nothing new"
                seen.add(content)
                assert content == drawn.frame(picture, [other.input_value() for other in inputs])
                output = page.query_selector(f"output[for='{slider.get_attribute('id')}']")
                value = values[int(slider.input_value())]
                assert output.inner_text() == value == slider.get_attribute("aria-valuetext")
                if figure.get_attribute("data-together") == "no":
                    moved = [other for other in inputs if other.input_value() != other.get_attribute("value")]
                    assert len(moved) == 1, "the other sliders are at their start"
            assert image.evaluate("(image) => image.naturalWidth") > 300
