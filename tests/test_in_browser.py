"""lessons/group.html and the site in a real browser: the page's model against torch, its numbers
against the scripts, a step, lanes, controls, sliders, the widths of a phone and of a desk. Skipped
without playwright and Chromium."""

import json
import random
import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from lessons import identity
from lessons.page import build
from lessons.site import drawn, sources, website
from toy_env import arithmetic
from toy_env.model import encode_prompts, load_policy

TENSORS = "(policy) => Object.values(policy).map((tensor) => Array.from(tensor))"  # in the order of build.TENSORS
SCRIPTS, PAGE = build.SCRIPTS, build.PAGE.as_uri()
pytestmark = pytest.mark.slow


@contextmanager
def opened(browser, address=PAGE, **settings):
    """A page in a window of its own. Fails at the end on errors in the console and requests for
    anything but files."""
    page, faults = browser.new_page(**settings), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda message: message.type in ("error", "warning") and faults.append(message.text),
    )
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on(
        "request",
        lambda request: re.match("file:|data:|blob:", request.url) or faults.append(request.url),
    )
    page.goto(address)
    if address.startswith(PAGE):
        wait_until_written(page)
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
def policy(console):
    """The page's base model as a torch model in float64."""
    model = load_policy("base")[0].double()
    tensors = console.evaluate(f"() => ({TENSORS})(tensors(sigmaLadder.base))")
    for key, tensor in zip(build.TENSORS, tensors, strict=True):
        model.state_dict()[key].copy_(
            torch.tensor(tensor).double().view_as(model.state_dict()[key])
        )
    return model


def call(page, function: str, *arguments):
    """The value of one of the page's functions."""
    return page.evaluate(f"(given) => sigmaLadder.{function}(...given)", arguments)


def logits_of(policy, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return policy(torch.tensor([ids])).logits[0]


# ---------------------------------------------------------------------- the model of group.html


@pytest.mark.parametrize("prompt", ["29+46-36?", "7+8?", "50-1-2-3-4?"])
def test_a_completion_drawn_from_fixed_random_numbers_is_that_of_torch(console, policy, prompt):
    rng = random.Random(prompt)
    numbers = [rng.random() for _ in range(3 * 56)]
    script = """([prompts, numbers]) =>
        [...complete(tensors(sigmaLadder.base), prompts, () => numbers.shift())].pop()"""
    rows = console.evaluate(script, [3 * [prompt], numbers])
    tokenizer = load_policy("base")[1]
    start = encode_prompts(tokenizer, [prompt])[0][0].tolist()
    expected, remaining = [[], [], []], iter(numbers)
    for _ in range(56):
        for ids in expected:
            if ids[-1:] != [tokenizer.eos_token_id]:
                sums = logits_of(policy, start + ids)[-1].softmax(dim=0).cumsum(dim=0)
                ids.append(min(int((sums <= next(remaining)).sum()), 18))
    assert [row["ids"] for row in rows] == expected
    for row in rows:
        dist = torch.distributions.Categorical(
            logits=logits_of(policy, start + row["ids"])[len(start) - 1 : -1]
        )
        assert np.allclose(row["logps"], dist.log_prob(torch.tensor(row["ids"])), atol=1e-4)
        assert np.allclose(row["entropies"], dist.entropy(), atol=1e-4)
        assert row["truncated"] == (row["ids"][-1] != tokenizer.eos_token_id)


def test_the_verifier_and_the_problems_are_those_of_the_task(console):
    rng = random.Random(0)
    completions = [
        "".join(rng.choices("0123456789+-=;##", k=rng.randint(0, 9))) for _ in range(500)
    ]
    answers = console.evaluate("(all) => all.map(sigmaLadder.answer)", completions)
    assert answers == [arithmetic.extract_answer(completion) for completion in completions]
    assert sum(answer is not None for answer in answers) > 50
    problems = console.evaluate(
        "[...Array(300).keys()].map((i) => sigmaLadder.drawProblem(sigmaLadder.stream(i)))"
    )
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
    """Advantages against compute_advantages, the weight of each token against autograd through
    policy_loss, and the update's coefficient against the sums of both kinds of advantages, on
    either side of the clip's edges and cap."""
    rng, script = random.Random(name), SCRIPTS[name]
    config = script.Config(**({"kl_coef": 0.0} if hasattr(script.Config, "kl_coef") else {}))
    low, high = (
        getattr(config, f"clip_eps{side}", getattr(config, "clip_eps", 0.1))
        for side in ("_low", "_high")
    )
    edges = [1 - low, 1 + high, getattr(config, "max_ratio", 5)]
    seen = set()
    for ratio in 3 * [
        0.5,
        1.0,
        1.1,
        3.0,
        *(edge + step for edge in edges for step in (-0.001, 0.001)),
    ]:
        G = rng.choice([2, 3, 8])
        verdicts, lengths = (
            [int(rng.random() < 0.5) for _ in range(G)],
            [rng.randint(1, 56) for _ in range(G)],
        )
        rewards = torch.tensor([verdicts]).double()
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        old = torch.full(mask.shape, -1.0).double()
        logps = (old + np.log(ratio)).requires_grad_()
        inputs = {"logps": logps, "mask": mask, "config": config}
        if name == "PPO":
            values = torch.full(mask.shape, rewards.mean().item()).double() * mask
            advantages, _ = script.compute_advantages(
                rewards=rewards,
                values=values,
                old_logps=old,
                ref_logps=None,
                mask=mask,
                config=config,
            )
        else:
            if name in ("DAPO", "CISPO"):
                rewards = 2 * rewards - 1 + script.overlong_penalty(mask=mask, config=config)
            advantages = script.compute_advantages(rewards=rewards).view(-1, 1)
            if name in ("DAPO", "CISPO") and sum(verdicts) in (0, G):
                assert (
                    len(script.groups_to_keep(correct=torch.tensor([verdicts]), config=config)) == 0
                )
                advantages = torch.zeros(G, 1).double()
            sums = {"right": 0.0, "wrong": 0.0}
            for A, verdict in zip(advantages[:, 0].tolist(), verdicts):
                sums["right" if verdict else "wrong"] += A / G
            assert call(console, "coefficients", name, verdicts, lengths) == pytest.approx(
                sums, abs=1e-6
            )
        if name != "REINFORCE":
            inputs |= {"old_logps": old}
        if name not in ("REINFORCE", "PPO", "DAPO", "CISPO"):
            inputs |= {"ref_logps": None}
        (gradient,) = torch.autograd.grad(
            script.policy_loss(advantages=advantages, **inputs), logps
        )
        rows = call(console, "pushes", name, verdicts, lengths, ratio)
        for row, weights, A, n in zip(
            rows, -gradient, advantages.expand(-1, mask.shape[1]), lengths
        ):
            assert row["advantage"] == pytest.approx(A[:n].mean().item(), abs=1e-6)
            assert [token["weight"] for token in row["tokens"]] == pytest.approx(
                weights[:n].tolist(), abs=1e-6
            )
            for token, a, weight in zip(row["tokens"], A, weights):
                assert token["stopped"] == bool(a != 0 and weight == 0)
                seen.add(token["stopped"])
    assert seen == ({False} if name in ("REINFORCE", "CISPO") else {False, True})


# ---------------------------------------------------------------------- group.html in a reader's hands


def wait_until_written(page) -> None:
    page.wait_for_function("document.querySelector('#lanes').getAttribute('aria-busy') === 'false'")


def wait_until_trained(page) -> None:
    page.wait_for_function("!document.querySelector('#one').disabled", timeout=120_000)
    wait_until_written(page)


def count(page) -> str:
    return page.locator(".count").first.inner_text()


def right_ones(page) -> int:
    return int(re.search(r"(\d) of \d right", count(page))[1])


def texts(page) -> list[str]:
    """The completions of all lanes."""
    lines = "(all) => all.map((row) => [...row.querySelectorAll('i')].map((token) => token.textContent).join(''))"
    return page.locator(".completions li").evaluate_all(lines)


def shown(page) -> tuple[str, list[int], list[int], list[str]]:
    """The problem, and of each completion: whether it counts as right, its length, its text without
    the end."""
    rewards = [
        int("right" in text)
        for text in page.locator(".completions li > :first-child").all_inner_texts()
    ]
    expression = re.search(r"(\S+) = ", count(page))[1].replace("−", "-")
    return (
        expression,
        rewards,
        [len(text) for text in texts(page)],
        [text.removesuffix("∎") for text in texts(page)],
    )


def choose(page, name: str, lane: str = "A") -> None:
    page.get_by_label(f"Algorithm of lane {lane}").select_option(name)
    wait_until_written(page)


def flip_all(page, colour: str) -> None:
    """Flip every verdict of one colour: "up" for the right ones, "down" for the wrong ones."""
    verdict = f"document.querySelector('.completions .{colour}')"
    page.evaluate(f"while ({verdict}) {verdict}.click()")


def hurry(page) -> None:
    """Smaller steps: two problems of four completions, and eight held-out problems."""
    small = "Object.assign(SETTINGS, { prompts_per_step: 2, group_size: 4, num_minibatches: 2 })"
    page.evaluate(f"() => {{ {small}; sigmaLadder.world.heldOut.length = 8; }}")
    page.locator("#seed").fill("1")
    page.locator("#seed").press("Tab")
    page.wait_for_function("document.querySelectorAll('.completions button').length === 4")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_verdicts_are_those_of_the_verifier(page):
    for _ in range(4):
        expression, rewards, _, completions = shown(page)
        problem = arithmetic.Problem(expression, eval(expression), 0)
        assert rewards == [arithmetic.reward(problem, completion) for completion in completions]
        assert f" = {eval(expression)}: {sum(rewards)} of 8 right, σ = " in count(page)
        page.get_by_role("button", name="Another problem").click()
        wait_until_written(page)


def test_flipping_a_verdict_changes_the_push_and_comes_back(page):
    k = right_ones(page)
    first = page.locator(".completions button").first
    right = "right" in first.inner_text()
    before = page.locator(".completions li").nth(5).locator(".amount").inner_text()
    first.focus()
    page.keyboard.press("Space")
    assert right_ones(page) == (k - 1 if right else k + 1) and "flipped by you" in count(page)
    assert page.locator(".completions li").nth(5).locator(".amount").inner_text() != before
    assert (
        page.evaluate("document.activeElement.dataset.row") == "0"
    )  # the keyboard stays where it was
    page.keyboard.press("Space")
    assert right_ones(page) == k and "flipped" not in count(page)


@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO", "DAPO"])
def test_texts_and_colours_show_what_the_script_computes(page, name):
    """The marked code; for every k: the advantages in the rows, the coefficient, and which tokens
    go which way."""
    choose(page, name)
    new = {"GRPO": "/ sigma", "Dr. GRPO": "no / sigma", "DAPO": "dynamic sampling"}[name]
    assert any(new in line for line in page.locator("#code .plus").all_text_contents())
    for k in range(1, 8):
        while right_ones(page) != k:
            verdict = "wrong" if right_ones(page) < k else "right"
            page.locator(f".completions button:has-text('{verdict}')").first.click()
        rewards = shown(page)[1]
        A = SCRIPTS[name].compute_advantages(rewards=torch.tensor([rewards]).double())[0].tolist()
        amounts = [text.removeprefix("A = ") for text in page.locator(".amount").all_inner_texts()]
        assert [number(text) for text in amounts] == pytest.approx(A, abs=0.00501)
        text = page.locator(".lane .note").inner_text()
        size = sum(a for a, R in zip(A, rewards) if R) / 8
        assert number(re.search(r"right completions: ([+−.\d]+)\.", text)[1]) == pytest.approx(
            size, abs=5.01e-4
        )
        assert f"right {amounts[rewards.index(1)]}, wrong {amounts[rewards.index(0)]}" in text
        for row, R in zip(page.locator(".completions li").all(), rewards):
            script = "(all) => all.map((i) => i.className + i.style.background.slice(0, 12))"
            assert set(row.locator(".tokens i").evaluate_all(script)) == {
                "posrgb(var(--up" if R else "negrgb(var(--do"
            }


def test_blocks_and_cards_show_the_pushes_at_the_ratio(page):
    """Every block of every card: crossed out, empty, or of the colour and fullness of its push."""
    assert page.locator("#cards article").count() == 3
    page.get_by_role("button", name="Show all nine").click()
    assert {
        card.get_attribute("data-name") for card in page.locator("#cards article").all()
    } == set(SCRIPTS)
    for position in ("0", "24", "-60", "180"):
        page.locator("#ratio").fill(position)
        _, rewards, lengths, _ = shown(page)
        ratio = float(np.exp(int(position) / 100))
        assert (
            page.locator("#ratio-out").inner_text()
            == f"{ratio:.3f}"
            == page.locator("#ratio-too").inner_text()
        )
        for card in page.locator("#cards article").all():
            name, text = card.get_attribute("data-name"), card.inner_text()
            rows, full = (
                call(page, "pushes", name, rewards, lengths, ratio),
                call(page, "fullColour", name, lengths),
            )
            tokens = [token for row in rows for token in row["tokens"]]
            fills = card.locator(".block").evaluate_all(
                "(all) => all.map((block) => block.style.fill)"
            )
            for fill, weight in zip(fills, [token["weight"] for token in tokens], strict=True):
                colour = r"rgb\(var\(--(\w+)-rgb\) / calc\(0.1 \+ .* \* ([\d.]+)\)\)|transparent"
                side, share = re.fullmatch(colour, fill).groups()
                assert side == ("up" if weight > 0 else "down" if weight < 0 else None)
                assert float(share or 0) == pytest.approx(min(1, abs(weight) / full), abs=1e-3)
            for kind, reward in (("right", 1), ("wrong", 0)):
                pushed = sum(
                    token["weight"]
                    for row, R in zip(rows, rewards)
                    if reward == R
                    for token in row["tokens"]
                )
                printed = re.search(rf"All tokens:.*{kind} ([+−]?[\d.]+)", text)[1]
                assert number(printed) == pytest.approx(pushed, abs=5.01e-4)
            stopped = sum(token["stopped"] for token in tokens)
            assert card.locator(".stopped").count() == stopped
            assert (
                name in ("REINFORCE", "CISPO")
                or f"{stopped} of {len(tokens)} tokens stopped" in text
            )
    page.locator("#ratio").scroll_into_view_if_needed()
    track = page.locator("#ratio").bounding_box()
    page.mouse.move(
        track["x"] + track["width"] - 4, track["y"] + track["height"] / 2
    )  # the handle, at 180
    page.mouse.down()
    seen = set()
    for share in (0.8, 0.6, 0.4, 0.2):
        page.mouse.move(track["x"] + track["width"] * share, track["y"] + track["height"] / 2)
        seen.add(page.locator("#ratio-out").inner_text() + page.locator("#cards").inner_html())
    page.mouse.up()
    assert len(seen) == 4, "the cards follow a drag"
    page.locator("#cards article").last.scroll_into_view_if_needed()
    assert 0 <= page.locator("#ratio").bounding_box()["y"] < 60, "the slider stays in sight"
    page.locator("#ratio").focus()
    page.keyboard.press("Home")
    assert page.locator("#ratio-out").inner_text() == "0.497"


def test_a_silent_group_says_so(page):
    for colour in ("up", "down"):
        flip_all(page, colour)
        assert "the group is silent" in page.locator(".lane").inner_text()
        assert page.evaluate(
            "[...document.querySelectorAll('.tokens i')].every((i) => i.className === '')"
        )
        assert page.locator("#cards .silent").count() == 3
    choose(page, "DAPO")
    flip_all(page, "up")
    assert "draws other problems" in page.locator(".lane").inner_text()


def test_the_dial_opens_after_a_guess_and_shows_the_closed_forms(page):
    k, G = right_ones(page), 8
    assert page.locator("#open").is_hidden() and page.locator("#dial-k").input_value() == str(
        k
    )  # the group's
    page.get_by_role("button", name="larger").click()
    assert page.locator("#open").is_visible() and page.locator("#verdict").inner_text().startswith(
        "About two thirds"
    )
    for G, k, p in ((8, 1, 12), (32, 20, 50), (3, 1, 90), (4, 3, 30)):
        for name, position in {"G": G, "k": k, "p": p}.items():
            page.locator(f"#dial-{name}").fill(str(position))
        sigma, p = float(identity.sigma(k, G)), p / 100
        expected = [
            sigma,
            sigma**2,
            identity.weight("GRPO", p, G),
            identity.weight("GRPO", 0.5, G),
            (G - 1) / G,
        ]
        expected += [identity.silent_rate(p, G)]
        captions = " ".join(page.locator("#plots figcaption").all_inner_texts())
        numbers = [
            float(x)
            for x in re.findall(r"(?:is|and|half|always) (?:under )?(\d[.\d]*\d|\d)", captions)
        ]
        assert numbers == pytest.approx([float(x) for x in expected], abs=1e-3)
        spoken = [svg.get_attribute("aria-label") for svg in page.locator("#plots svg").all()]
        assert (
            len(spoken) == 3
            and all(text in captions for text in spoken)
            and f"At k = {k} of G = {G}" in spoken[0]
        )
        for i, power in enumerate(
            (1, 2)
        ):  # sigma and sigma squared over k: 202 units of height for .8
            line = page.locator("#plots figure").first.locator("path").nth(i).get_attribute("d")
            heights = [
                (212 - float(point.split(",")[1])) * 0.8 / 202
                for point in re.split("[ML]", line)[1:]
            ]
            assert heights == pytest.approx(
                [float(identity.sigma(i, G)) ** power for i in range(G + 1)], abs=1e-3
            )
    page.locator("#dial-k").focus()
    page.keyboard.press("End")
    page.locator("#dial-G").focus()
    page.keyboard.press("Home")  # G = 2: k may not stay at 4
    assert [page.locator(f"#dial-{name}-out").inner_text() for name in ("G", "k")] == ["2", "2"]
    flat = (
        page.locator("#plots figure").nth(1).locator("path").nth(1).get_attribute("d")
    )  # GRPO's weight over p
    assert len({point.split(",")[1] for point in re.split("[ML]", flat)[1:]}) == 1


def test_what_is_no_problem_is_refused_for_its_own_reason_and_leaves_the_group(page):
    before, problem = count(page), page.locator("#problem")
    for wrong, reason in {
        "8*9": "type one to four",
        "8+90": "and 90 is not",
        "5+3−9+2": "5+3−9 = −1, and",
    }.items():
        problem.fill(wrong)
        page.keyboard.press("Enter")
        assert reason in page.locator("#refused").inner_text() and count(page) == before
    problem.fill(" 8+9−3? ")  # with a typographic minus
    page.get_by_role("button", name="Write completions").click()
    wait_until_written(page)
    assert "8+9−3 = 14" in count(page) and page.locator("#refused").inner_text() == ""
    first = texts(page)
    page.get_by_role("button", name="Write completions").click()  # again: from other random numbers
    wait_until_written(page)
    assert "8+9−3 = 14" in count(page) and texts(page) != first
    page.evaluate(
        "for (const button of ['#draw', '#draw', '#go']) document.querySelector(button).click()"
    )
    wait_until_written(page)
    page.wait_for_timeout(300)
    assert (
        page.locator("#problem").input_value().replace("−", "-") == shown(page)[0]
    )  # the last request, no other


# ---------------------------------------------------------------------- training on group.html


def logps_of(policy, prompt: str, completion: list[int]) -> torch.Tensor:
    start = encode_prompts(load_policy("base")[1], [prompt])[0][0].tolist()
    logps = logits_of(policy, start + completion)[len(start) - 1 : -1].log_softmax(dim=-1)
    return logps.gather(1, torch.tensor(completion)[:, None])[:, 0]


def test_a_step_shows_what_it_did_to_each_token_and_its_address_repeats_it(browser, page, policy):
    """Probabilities before and after against torch; the flipped verdict counts."""
    page.locator("#one").click()
    wait_until_trained(page)
    group = page.evaluate("sigmaLadder.lanes[0].last.map(({ prompt, ids }) => ({ prompt, ids }))")
    weights = f"() => ({TENSORS})(tensors(sigmaLadder.lanes[0].trainer.policy.weights))"
    stepped, state = load_policy("base")[0].double(), page.evaluate(weights)
    for key, tensor in zip(build.TENSORS, state, strict=True):
        stepped.state_dict()[key].copy_(torch.tensor(tensor).view_as(stepped.state_dict()[key]))
    rows = [(row["prompt"], row["ids"]) for row in group]
    before, after = (
        torch.cat([logps_of(model, *row) for row in rows]) for model in (policy, stepped)
    )
    script = "(all) => all.map(({ style }) => ['--before', '--after'].map((name) => +style.getPropertyValue(name)))"
    bars = np.array(page.locator(".completions i").evaluate_all(script))
    assert np.abs(bars - torch.stack([before, after], dim=1).exp().numpy()).max() < 1e-3
    sentence = re.search(
        r"(\d+) of these (\d+) tokens more probable and (\d+) less",
        page.locator(".lane").inner_text(),
    )
    more, total, less = map(int, sentence.groups())
    assert total == len(before) and abs(more - int((after > before).sum())) <= 1 >= abs(
        less - int((after < before).sum())
    )
    page.locator("#push").check()
    after_step, link = texts(page), page.locator("#link").evaluate("(link) => link.href")
    assert "step=1" in link and page.evaluate("location.href") == link
    with opened(browser, link) as again:
        again.wait_for_function(
            "document.querySelector('#time-out').textContent === '1 of 1'", timeout=60_000
        )
        wait_until_trained(again)
        assert texts(again) == after_step
        assert again.evaluate(weights) == state
        again.locator("#time").fill("0")
        wait_until_written(again)
        again.locator(".completions button").first.click()  # flipped: another step
        again.locator("#one").click()
        wait_until_trained(again)
        assert again.evaluate(weights) != state


def test_training_goes_back_in_time_and_on_from_there(page):
    hurry(page)
    page.locator("#train").click()
    page.wait_for_function(
        "parseInt(document.querySelector('#time-out').textContent) >= 3", timeout=60_000
    )
    page.locator("#train").click()  # Stop
    wait_until_trained(page)
    steps, curve = page.evaluate("sigmaLadder.lanes[0].steps"), page.locator("#curves path").nth(1)
    assert curve.get_attribute("d").count("L") == steps - 1 and page.evaluate(
        "sigmaLadder.world.pool.workers.length"
    )
    last = texts(page)
    page.locator("#time").focus()
    page.keyboard.press("Home")
    page.wait_for_function("!document.querySelector('.count').textContent.includes('step')")
    assert page.locator("#time-out").inner_text() == f"0 of {steps}"
    start = texts(page)
    page.keyboard.press("End")
    page.wait_for_function(f"document.querySelector('.count').textContent.includes('step {steps}')")
    assert texts(page) == last
    weights = page.evaluate("[...sigmaLadder.lanes[0].trainer.states[2].policy.weights]")
    page.locator("#time").fill("1")
    page.wait_for_function("document.querySelector('.count').textContent.includes('After step 1:')")
    page.locator("#one").click()
    wait_until_trained(page)
    assert page.locator("#time-out").inner_text() == "2 of 2"
    assert (
        page.evaluate("[...sigmaLadder.lanes[0].trainer.policy.weights]") == weights
    )  # the same step as before
    page.evaluate("sigmaLadder.lanes[0].trainer.config.learning_rate = 1e30")
    page.locator("#one").click()
    wait_until_trained(page)
    assert (
        "diverged" in page.locator("#alarm").inner_text()
        and page.locator("#time-out").inner_text() == "2 of 2"
    )
    page.evaluate("sigmaLadder.lanes[0].trainer.config.learning_rate = 0.2")
    page.evaluate("sigmaLadder.lanes[0].accuracy[0][1] = 0.9")
    page.locator("#train").click()
    page.wait_for_function(
        "document.querySelector('#alarm').textContent.includes('collapsed')", timeout=120_000
    )
    wait_until_trained(page)
    assert page.locator("#time-out").inner_text() == "5 of 5"
    page.locator("#time").fill("0")
    page.wait_for_function("!document.querySelector('.count').textContent.includes('step')")
    assert texts(page) == start


def test_two_lanes_have_the_same_problems_and_show_their_difference(page):
    hurry(page)
    page.locator("#one").click()
    wait_until_trained(page)
    page.get_by_role("button", name="Compare two").click()
    wait_until_written(page)
    removed, added = (
        page.locator(f"#code .{mark}").all_text_contents() for mark in ("minus", "plus")
    )
    assert any("/ sigma" in line for line in removed) and any(
        "no / length" in line for line in added
    )
    assert page.evaluate("document.activeElement.ariaLabel") == "Algorithm of lane B"
    choose(page, "GRPO", "B")
    assert "Nothing" in page.locator("#code").inner_text()
    for steps in ("1 of 1", "2 of 2"):  # at first B alone, which then stands where A does
        page.locator("#one").click()
        wait_until_trained(page)
        assert page.locator("#time-out").inner_text() == steps
    a, b = page.evaluate(
        "sigmaLadder.lanes.map((lane) => [lane.metrics, [...lane.trainer.policy.weights]])"
    )
    assert a == b and [row["step"] for row in a[0]] == [1, 2]
    settings = {  # what the page calls them, and the choices: the script's, another one
        "advantages": ("advantage", "(R − mean) / σ", "R − mean"),
        "divisor": ("divided by", "its completion's length", "the number of tokens"),
        "clip": ("clip", "0.8 to 1.2", "none"),
        "kl_coef": ("weight of the KL", "0.04", "0"),
        "epochs": ("epochs", "1", "2"),
        "mistake": ("mistake of the clinic", "none", "the same prompts at every step"),
    }
    page.evaluate(
        "document.querySelectorAll('.lane details').forEach((details) => { details.open = true; })"
    )
    for key, (label, own, choice) in settings.items():
        select = page.locator(".lane").nth(1).locator(".settings").get_by_label(label)
        select.focus()
        select.select_option(choice)
        wait_until_written(page)
        (A, config), (other_A, other_config) = (
            page.evaluate("""sigmaLadder.lanes.map(({ algorithm, trainer: { config } }) =>
            [algorithm.advantages([1, 0, 0, 0], [4, 4, 4, 4])[0], JSON.stringify(config)])""")
        )
        assert (A, config) != (other_A, other_config) and (key != "advantages" or other_A == 0.75)
        changed_line = 'seed(f"{self.config.seed}")' if key == "mistake" else f"{key} = {choice}"
        assert (
            key in ("advantages", "divisor")
            or changed_line in page.locator("#code .plus").inner_text()
        )
        assert page.locator("#code .minus").count() == (3 if key == "advantages" else 1)
        assert (
            f"B.{key}=" in page.evaluate("location.hash")
            and page.evaluate("sigmaLadder.lanes[1].steps") == 0
        )
        assert page.evaluate("document.activeElement.parentElement.textContent").startswith(label)
        select.select_option(own)
        wait_until_written(page)
    page.get_by_role("button", name="Remove this lane").click()
    assert page.locator(".lane").count() == 1 and page.locator("#time-out").inner_text() == "2 of 2"


def test_mistakes_of_the_clinic_are_made(console):
    """Two steps of the page's training with each: the patches' effects, and no other."""
    made = console.evaluate("""async () => {
        const found = {};
        for (const mistake of ["", "same_prompts", "verifier_lax", "stale_sampler", "kl_sign"]) {
            const algorithm = { ...ALGORITHMS.GRPO, mistake, prompts_per_step: 2 }, weights = sigmaLadder.base;
            const trainer = new Trainer({ weights, pool: new Pool(), algorithm }), prompts = [];
            for (let step = 0; step < 2; step++)
                prompts.push((await trainer.step()).drawn.flat().map((row) => row.prompt));
            const base = trainer.sampler(trainer.policy) === weights, coef = trainer.config.kl_coef;
            found[mistake] = { base, coef, prompts, anywhere: trainer.reward("1;39;2#40", 39) };
        }
        return found; }""")
    right = made.pop("")
    assert right["coef"] == 0.04 and not right["anywhere"] and not right["base"]
    assert (
        right["prompts"][0] != right["prompts"][1]
        and right["prompts"][0] == made["kl_sign"]["prompts"][0]
    )
    effects = {
        "same_prompts": lambda one: one["prompts"][0] == one["prompts"][1],
        "verifier_lax": lambda one: one["anywhere"] == 1,
        "stale_sampler": lambda one: one["base"],
        "kl_sign": lambda one: one["coef"] == -0.04,
    }
    for name, one in made.items():
        assert [effect for effect, seen in effects.items() if seen(one)] == [name]
    patches = console.evaluate("JSON.parse(document.querySelector('#patches').textContent)")
    assert set(patches) == set(made) and all(
        len(lines) == 1 for pair in patches.values() for lines in pair
    )


def test_differences_of_code_lead_from_one_script_to_the_other(console):
    code = console.evaluate("sigmaLadder.CODE")
    lines = {
        name: [line for part in parts.values() for line in part] for name, parts in code.items()
    }
    for a in lines.values():
        for b in lines.values():
            diff = call(console, "difference", a, b)
            assert [line for mark, line in diff if mark != "+"] == a
            assert [line for mark, line in diff if mark != "-"] == b
            assert a != b or all(mark == " " for mark, _ in diff)
    assert (
        len(call(console, "difference", lines["GRPO"], lines["Dr. GRPO"])) == len(lines["GRPO"]) + 2
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only_and_has_room_for_fingers(browser, scheme):
    with opened(browser, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        page.get_by_role("button", name="larger").click()
        page.get_by_role("button", name="Show all nine").click()
        page.get_by_role("button", name="Compare two").click()
        wait_until_written(page)
        page.evaluate(
            "document.querySelectorAll('details').forEach((details) => details.open = true)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate(
            "[...document.querySelectorAll('svg')].every((svg) => svg.getAttribute('aria-label'))"
        )
        script = "(all) => all.map((one) => one.getBoundingClientRect().height).filter((height) => height > 0)"
        assert (
            min(
                page.locator("button, select, input:not([type=radio]), summary").evaluate_all(
                    script
                )
            )
            >= 44
        )
        dark = (
            page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        )
        assert dark == (scheme == "dark")


# ---------------------------------------------------------------------- the site

DRAWN_LESSONS = sources.find_sources((0, 13))
CUT_OFF = (
    "[...document.querySelectorAll('pre')].some((pre) => pre.scrollWidth > pre.clientWidth + 1)"
)
LOADED = """async () => ({
  pictures: await Promise.all([...document.images].map((image) => image.decode())).then(() => true, () => false),
  formulas: [...document.querySelectorAll("math")].every((math) => math.getBoundingClientRect().height > 4) })"""
REDRAWN = "([image, before]) => image.currentSrc && image.currentSrc !== before && image.complete"
# The SVG that an image shows, as text; the address of a file, which a page may not read.
CONTENT = "async (image) => image.currentSrc.startsWith('blob:') ? (await fetch(image.currentSrc)).text() : image.currentSrc"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site with the pictures of lessons 0 and 13 drawn: its folder, and these
    pictures."""
    pytest.importorskip(
        "latex2mathml", reason="the site needs latex2mathml: pip install -e '.[page]'"
    )
    folder = tmp_path_factory.mktemp("site")
    pictures = drawn.draw_lessons(DRAWN_LESSONS)
    return website.write_site(sources.reading_order(), folder, pictures).parent, pictures


def test_pages_fit_the_window_and_show_pictures_and_formulas(browser, site):
    """At the width of a phone and of a desk, with everything unfolded."""
    folder, _ = site
    with opened(browser, (folder / "index.html").as_uri()) as page:
        for path in sorted(folder.rglob("*.html")):
            page.goto(path.as_uri())
            page.evaluate(
                "document.querySelectorAll('details').forEach((details) => details.open = true)"
            )
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 850})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (
                    f"{path.name} at {width}"
                )
            assert page.evaluate(LOADED) == {"pictures": True, "formulas": True}, path.name
            page.emulate_media(media="print")
            cut_off = page.evaluate(CUT_OFF)
            page.emulate_media(media="screen")
            assert not cut_off or path.name == "group.html", f"{path.name} cuts code off on paper"


def test_the_ladder_shows_any_two_scripts_and_what_a_tag_means(browser, site):
    with opened(browser, (site[0] / "ladder.html").as_uri() + "#grpo-gspo") as page:
        assert (
            page.locator(".changed .line").count() > 30
            and page.locator(".heads").inner_text() == "grpo.py\ngspo.py"
        )
        page.click("button[data-tag='GSPO: narrow clip']")
        assert (
            page.locator("#entry math").count() == 1
            and "clip_ratio_low=0.009" in page.locator("#entry").inner_text()
        )
        page.locator("select").last.select_option("grpo")
        assert page.locator(".changed").count() == 0 and page.url.endswith("#grpo-grpo")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("source", DRAWN_LESSONS, ids=lambda source: source.stem)
def test_every_slider_changes_its_picture(browser, site, source, width):
    folder, pictures = site
    pictures = pictures[source]["narrow" if width == 390 else "wide"]
    with opened(
        browser, (folder / f"{source.stem}.html").as_uri(), viewport={"width": width, "height": 850}
    ) as page:
        for figure in page.query_selector_all("figure[data-picture]"):
            picture = pictures[int(figure.get_attribute("data-picture"))]
            image, inputs = figure.query_selector("img"), figure.query_selector_all("input")
            assert inputs and all(slider.is_visible() for slider in inputs)
            seen = {page.evaluate(CONTENT, image)}
            for slider in inputs:
                values = json.loads(slider.get_attribute("data-values"))
                before, start = (
                    image.evaluate("(image) => image.currentSrc"),
                    int(slider.input_value()),
                )
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
                    moved = [
                        other
                        for other in inputs
                        if other.input_value() != other.get_attribute("value")
                    ]
                    assert len(moved) == 1, "the other sliders are at their start"
            assert image.evaluate("(image) => image.naturalWidth") > 300
