"""lessons/group.html in a real browser: its model against torch, its numbers against the scripts, its controls.

Skipped without playwright and a Chromium, and says how to install them.
"""

import random
import re

import numpy as np
import pytest
import torch

from algorithms import cispo, dapo, dr_grpo, grpo, gspo, maxrl, ppo, reinforce, rloo
from lessons import identity
from lessons.page import build
from toy_env import arithmetic
from toy_env.model import encode_prompts, load_policy

SCRIPTS = {
    "REINFORCE": reinforce, "PPO": ppo, "GRPO": grpo, "Dr. GRPO": dr_grpo, "DAPO": dapo,
    "RLOO": rloo, "MaxRL": maxrl, "GSPO": gspo, "CISPO": cispo,
}  # fmt: skip
NAMES = [build.BASE, *build.RUNS]
pytestmark = pytest.mark.slow


@pytest.fixture
def page(browser):
    """The page at its first eight completions. Fails on an error in the console and on any request but for the file."""
    yield from watched(browser)


@pytest.fixture(scope="module")
def console(browser):
    """The page, for tests that only ask its functions."""
    yield from watched(browser)


def watched(browser):
    errors, requests = [], []
    page = opened(browser, errors, requests)
    yield page
    page.close()
    assert not errors and all(url.startswith("file:") for url in requests), (errors, requests)


def opened(browser, errors, requests, **settings):
    page = browser.new_page(**settings)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(build.PAGE.as_uri())
    wait(page)
    return page


def wait(page) -> None:
    """Until the group stands there with its verdicts."""
    page.wait_for_function("document.querySelectorAll('#completions button').length === 8", timeout=20_000)


@pytest.fixture(scope="module")
def policies():
    """What the page holds, as torch models in float64."""
    import base64

    packed = base64.b64decode(build.part_of(build.PAGE.read_text("utf-8"), "weights"))
    return dict(zip(NAMES, map(build.policy_of, build.unpack(packed)), strict=True))


def logits_of(policy, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return policy(torch.tensor([ids])).logits[0]


# ---------------------------------------------------------------------- the model


def test_the_base_on_the_page_is_the_shipped_one(policies):
    for a, b in zip(build.rows_of(policies[build.BASE]), build.rows_of(load_policy("base")[0])):
        assert np.array_equal(a, b)


def texts(n: int) -> list[str]:
    """Prompts of the task, every other one with a worked completion behind it."""
    problems = arithmetic.sample_problems(n, (), random.Random(0))
    worked = ["".join(f"{t};" for t in ("1+2=3", "3-1=2")) + f"#{problem.answer}" for problem in problems]
    return [problem.prompt + done * (i % 2) for i, (problem, done) in enumerate(zip(problems, worked))]


def test_logits_are_those_of_torch(console, policies):
    """200 texts, all positions, over the seven policies; and the base as it is shipped, in float32."""
    shipped, tokenizer = load_policy("base")
    for i, text in enumerate(texts(200)):
        name = NAMES[i % len(NAMES)]
        ours = console.evaluate(
            "([name, text]) => { const reader = new sigmaLadder.Reader(sigmaLadder.policies[name]);"
            "return sigmaLadder.encode(text).map((id) => Array.from(reader.read(id))); }",
            [name, text],
        )
        ids = encode_prompts(tokenizer, [text])[0][0].tolist()
        assert (
            np.abs(np.array(ours) - logits_of(policies[name], ids).numpy()).max() < 1e-4
        )  # torch computes the angles in float32
        if name == build.BASE:
            assert np.abs(np.array(ours) - logits_of(shipped, ids).numpy()).max() < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_a_completion_drawn_from_fixed_random_numbers_is_that_of_torch(console, policies, name):
    rng, prompt = random.Random(name), "29+46-36?"
    numbers = [rng.random() for _ in range(3 * 56)]
    ours = console.evaluate(
        "([name, prompt, numbers]) => { const random = () => numbers.shift();"
        "return [...sigmaLadder.complete(sigmaLadder.policies[name], prompt, 3, random)].pop(); }",
        [name, prompt, numbers],
    )
    tokenizer = load_policy("base")[1]
    start = encode_prompts(tokenizer, [prompt])[0][0].tolist()
    rows, random_numbers = [[], [], []], iter(numbers)
    for _ in range(56):
        for row in rows:
            if row[-1:] != [tokenizer.eos_token_id]:
                sums = logits_of(policies[name], start + row)[-1].softmax(dim=0).cumsum(dim=0)
                row.append(min(int((sums <= next(random_numbers)).sum()), 18))
    assert ours == rows


def test_the_verifier_and_the_problems_are_those_of_the_task(console):
    rng = random.Random(0)
    completions = ["".join(rng.choices("0123456789+-=;##", k=rng.randint(0, 9))) for _ in range(500)]
    read = console.evaluate("(all) => all.map(sigmaLadder.answer)", completions)
    assert read == [arithmetic.extract_answer(completion) for completion in completions]
    assert sum(x is not None for x in read) > 50
    drawn = console.evaluate("[...Array(300).keys()].map((seed) => sigmaLadder.drawProblem(sigmaLadder.stream(seed)))")
    values = console.evaluate("(all) => all.map(sigmaLadder.value)", drawn)
    assert {len(re.findall("[+-]", expression)) for expression in drawn} == {1, 2, 3, 4}
    for expression, value in zip(drawn, values):
        totals = [total for _, total in arithmetic.steps(arithmetic.Problem(expression, 0, 0))]
        operands = [int(x) for x in re.findall(r"\d+", expression)]
        assert value == totals[-1] == eval(expression) and min(totals) >= 0 and max(totals) <= 99
        assert min(operands) >= 1 and max(operands) <= 50 and len(totals) <= 4
    wrong = ["", "12", "12+", "12+51", "5-6", "50+50", "1+1+1+1+1+1", "1*2", "01+2", "2+0", "a"]
    assert console.evaluate("(all) => all.map(sigmaLadder.value)", wrong) == [None] * len(wrong)


# ---------------------------------------------------------------------- the algorithms


def group(rng: random.Random) -> tuple[list[int], list[int], float]:
    """Rewards, lengths and a ratio that lies off the edges of all clips."""
    G = rng.choice([2, 3, 8])
    ratio = rng.choice([1.0, 0.5, 0.75, 0.85, 0.995, 1.005, 1.1, 1.25, 1.4, 3.0, 5.5])
    return [int(rng.random() < 0.5) for _ in range(G)], [rng.randint(1, 56) for _ in range(G)], ratio


def test_settings_are_those_of_the_scripts(console):
    """The clip's range and the cap; gae_lambda, overlong_buffer and max_new_tokens show in the pushes."""
    for name, script in SCRIPTS.items():
        config, ours = script.Config(), console.evaluate("(name) => sigmaLadder.ALGORITHMS[name]", name)
        both = [getattr(config, side, getattr(config, "clip_eps", None)) for side in ("clip_eps_low", "clip_eps_high")]
        assert ours.get("clip") == (None if both[0] is None else pytest.approx([1 - both[0], 1 + both[1]]))
        if not ours.get("clip"):
            assert ours["cap"] == getattr(config, "max_ratio", 0)


@pytest.mark.parametrize("name", SCRIPTS)
def test_pushes_are_the_gradient_of_the_script(console, name):
    """Advantages against compute_advantages, the weight of each token against autograd through policy_loss."""
    rng, script = random.Random(name), SCRIPTS[name]
    config = script.Config(**({"kl_coef": 0.0} if hasattr(script.Config, "kl_coef") else {}))
    seen = set()
    for _ in range(40):
        rewards, lengths, ratio = group(rng)
        given, G = torch.tensor([rewards]).double(), len(rewards)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        old = torch.full(mask.shape, -1.0).double()
        logps = (old + np.log(ratio)).requires_grad_()
        named = {"logps": logps, "mask": mask, "config": config}
        if name == "PPO":
            values = torch.full(mask.shape, given.mean().item()).double() * mask
            advantages, _ = script.compute_advantages(
                rewards=given, values=values, old_logps=old, ref_logps=None, mask=mask, config=config
            )
        else:
            if name in ("DAPO", "CISPO"):
                given = 2 * given - 1 + script.overlong_penalty(mask=mask, config=config)
            advantages = script.compute_advantages(rewards=given).view(-1, 1)
            if name in ("DAPO", "CISPO") and sum(rewards) in (0, G):
                assert len(script.groups_to_keep(correct=torch.tensor([rewards]), config=config)) == 0
                advantages = torch.zeros(G, 1).double()
        if name != "REINFORCE":
            named |= {"old_logps": old}
        if name not in ("REINFORCE", "PPO", "DAPO", "CISPO"):
            named |= {"ref_logps": None}
        (gradient,) = torch.autograd.grad(script.policy_loss(advantages=advantages, **named), logps)
        rows = console.evaluate("(given) => sigmaLadder.pushes(...given)", [name, rewards, lengths, ratio])
        for row, truth, A, n in zip(rows, -gradient, advantages.expand(-1, mask.shape[1]), lengths):
            assert row["advantage"] == pytest.approx(A[:n].mean().item(), abs=1e-6)
            assert [token["weight"] for token in row["tokens"]] == pytest.approx(truth[:n].tolist(), abs=1e-6)
            for token, a, w in zip(row["tokens"], A, truth):
                assert token["stopped"] == bool(a != 0 and w == 0)
                seen.add(token["stopped"])
    assert seen == ({False} if name in ("REINFORCE", "CISPO") else {False, True})


@pytest.mark.parametrize("ratio", [1.0, 0.7, 1.25])
def test_the_update_of_a_group_is_a_power_of_sigma_times_the_contrast(console, ratio):
    """sigma for GRPO, sigma squared for Dr. GRPO; at any ratio, where a stopped token counts as 0 in the contrast."""
    for G in (2, 3, 8):
        for k in range(1, G):
            rewards, sigma = [1] * k + [0] * (G - k), float(identity.sigma(k, G))
            for name, size, divisor in (("GRPO", sigma, 4), ("DAPO", sigma, 4), ("Dr. GRPO", sigma**2, 56)):
                both = console.evaluate("(given) => sigmaLadder.coefficients(...given)", [name, rewards, [4] * G])
                assert both == pytest.approx({"right": size, "wrong": -size}, abs=1e-12)
                rows = console.evaluate("(given) => sigmaLadder.pushes(...given)", [name, rewards, [4] * G, ratio])
                for row, R in zip(rows, rewards):
                    share = size / k if R else -size / (G - k)  # of one completion in the difference of two means
                    for token in row["tokens"]:
                        assert token["weight"] == pytest.approx(share * ratio * (not token["stopped"]) / divisor)


def test_closed_forms_are_those_of_the_lessons(console):
    for G in (2, 3, 4, 8, 17, 32):
        for p in (0.02, 0.125, 0.5, 0.98):
            ours = console.evaluate(
                "([p, G]) => ['silent', 'fidelity', 'weight'].map((name) => sigmaLadder.closed[name](p, G))", [p, G]
            )
            truth = [identity.silent_rate(p, G), identity.fidelity(p, G), identity.weight("GRPO", p, G)]
            assert ours == pytest.approx([float(x) for x in truth], rel=1e-9)
            assert console.evaluate("(G) => sigmaLadder.closed.weightDrGRPO(G)", G) == pytest.approx(
                float(identity.weight("Dr. GRPO", p, G))
            )
        for k in range(1, G):
            squared = identity.update_norm_squared(k, G, 0.3, 1.5, 0.7)
            assert console.evaluate(
                "(x) => sigmaLadder.closed.updateLength(...x)", [k, G, 0.3, 1.5, 0.7]
            ) ** 2 == pytest.approx(squared)


# ---------------------------------------------------------------------- in a reader's hands


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


def test_verdicts_are_those_of_the_verifier(page):
    for policy in ("base model", "GRPO, after 20 of 60 steps"):
        page.locator("#policy").select_option(policy)
        for _ in range(3):
            page.get_by_role("button", name="Draw another").click()
            page.wait_for_function("document.querySelector('#group').getAttribute('aria-busy') === 'false'")
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
def test_what_is_told_and_coloured_is_what_the_script_computes(page, name):
    """For every k: the advantages in the rows, the sums in the text and the bars, and which tokens go which way."""
    page.get_by_role("radio", name=name, exact=True).check()
    for k in range(1, 8):
        while right_ones(page) != k:
            wanted = "wrong" if right_ones(page) < k else "right"
            page.locator(f"#completions button:has-text('{wanted}')").first.click()
        rewards = shown(page)[1]
        A = SCRIPTS[name].compute_advantages(rewards=torch.tensor([rewards]).double())[0].tolist()
        amounts = page.locator(".amount").all_inner_texts()
        assert [float(text.removeprefix("A = ").replace("−", "-")) for text in amounts] == pytest.approx(A, abs=0.00501)
        size = sum(a for a, R in zip(A, rewards) if R) / 8
        bars = page.locator("svg.bars text").all_text_contents()
        assert bars == [f"coefficient: right +{size:.3f}", f"wrong −{size:.3f}"]
        blue, orange = (float(page.locator("svg.bars rect").nth(i).get_attribute("x")) for i in (0, 1))
        assert orange < blue and "--up)" in page.locator("svg.bars rect").first.get_attribute("style")
        told = page.locator("#told p").inner_text()
        if name != "DAPO":
            assert float(re.search(r"σ²? = \+([\d.]+)", told)[1]) == pytest.approx(size, abs=5.01e-4)
        assert told.startswith(name) and amounts[rewards.index(1)].removeprefix("A = ") in told
        for row, R in zip(page.locator("#completions li").all(), rewards):
            tokens = row.locator(".tokens i")
            ways = set(tokens.evaluate_all("(all) => all.map((i) => i.className + i.style.background.slice(0, 12))"))
            assert ways == {"posrgb(var(--up" if R else "negrgb(var(--do"}


def test_blocks_and_cards_show_the_pushes_at_the_ratio(page):
    """Every block of every card: crossed out, empty, or of the colour and fullness of its push."""
    for ratio in ("0", "24", "-60", "180"):
        page.locator("#ratio").fill(ratio)
        _, rewards, lengths, _ = shown(page)
        value = float(np.exp(int(ratio) / 100))
        assert page.locator("#ratio-out").inner_text() == f"{value:.3f}" == page.locator("#ratio-too").inner_text()
        for card in page.locator("#cards article").all():
            name = card.get_attribute("data-name")
            rows = page.evaluate("(given) => sigmaLadder.pushes(...given)", [name, rewards, lengths, value])
            tokens = [token for row in rows for token in row["tokens"]]
            full = page.evaluate("(name) => sigmaLadder.fullColour(name)", name)
            fills = card.locator(".block").evaluate_all("(all) => all.map((block) => block.style.fill)")
            for fill, token in zip(fills, tokens, strict=True):
                if token["weight"]:
                    side, share = re.fullmatch(
                        r"rgb\(var\(--(\w+)-rgb\) / calc\(0.1 \+ .* \* ([\d.]+)\)\)", fill
                    ).groups()
                    assert side == ("up" if token["weight"] > 0 else "down")
                    assert float(share) == pytest.approx(min(1, abs(token["weight"]) / full), abs=1e-3)
                else:
                    assert fill == "transparent"
            for what, reward in (("right", 1), ("wrong", 0)):
                pushed = sum(token["weight"] for row, R in zip(rows, rewards) if reward == R for token in row["tokens"])
                told = re.search(rf"all tokens:.*{what} ([+−]?[\d.]+)", card.inner_text())[1].replace("−", "-")
                assert float(told) == pytest.approx(pushed, abs=5.01e-4)
            stopped = sum(token["stopped"] for token in tokens)
            assert card.locator(".stopped").count() == stopped
            if name not in ("REINFORCE", "CISPO"):
                assert f"{stopped} of {len(tokens)} tokens stopped" in card.inner_text()
    handle = page.locator("#ratio").bounding_box()
    page.mouse.move(handle["x"] + handle["width"] - 4, handle["y"] + handle["height"] / 2)  # where it stands: 180
    page.mouse.down()
    seen = set()
    for share in (0.8, 0.6, 0.4, 0.2):
        page.mouse.move(handle["x"] + handle["width"] * share, handle["y"] + handle["height"] / 2)
        seen.add(page.locator("#ratio-out").inner_text() + page.locator("#cards").inner_html())
    page.mouse.up()
    assert len(seen) == 4, "the cards follow a drag"
    page.locator("#ratio").focus()
    page.keyboard.press("Home")
    assert page.locator("#ratio-out").inner_text() == "0.497"


def test_a_silent_group_is_said_to_be_silent_and_dapo_draws_until_one_is_mixed(page):
    while right_ones(page):
        page.locator("#completions button:has-text('right')").first.click()
    assert "The group is silent" in page.locator("#told").inner_text() and page.locator("svg.bars").count() == 0
    assert page.locator("#cards .silent").count() == 9  # REINFORCE too: nothing is right
    assert page.evaluate("[...document.querySelectorAll('.tokens i')].every((i) => i.className === '')")
    page.get_by_role("radio", name="DAPO").check()
    page.locator("#policy").select_option("DAPO, after 60 steps")  # most of its groups are silent
    page.wait_for_function("document.querySelector('#count').textContent.includes('DAPO')")
    for _ in range(3):
        page.evaluate(
            "while (document.querySelector('#completions .down')) document.querySelector('#completions .down').click()"
        )
        page.get_by_role("button", name="Draw problems until").click()
        page.wait_for_function("document.querySelector('#told').textContent.includes('drawn')", timeout=20_000)
        more, completions = map(int, re.findall(r"\d+", page.locator("#told p").first.inner_text()))
        assert 0 < right_ones(page) < 8 and completions == 8 * more
        assert page.locator("#problem").input_value() == shown(page)[0]


def test_the_code_of_the_switch_is_marked(page):
    for name, new in (("GRPO", "/ sigma"), ("Dr. GRPO", "no / sigma"), ("DAPO", "dynamic sampling")):
        page.get_by_role("radio", name=name, exact=True).check()
        assert any(new in line for line in page.locator("#code .plus").all_inner_texts())
        assert (page.locator("#code .minus").count() > 0) == (name != "GRPO")


def test_the_dial_opens_after_a_guess_and_shows_the_closed_forms(page):
    assert page.locator("#open").is_hidden()
    page.get_by_role("button", name="larger").click()
    assert page.locator("#open").is_visible() and page.locator("#verdict").inner_text().startswith("About two thirds")
    for G, k, p, v, contrast in ((8, 1, 12, 23, 8), (32, 20, 50, 0, 20), (3, 1, 90, 50, -20), (4, 3, 30, -20, 0)):
        for name, value in {"G": G, "k": k, "p": p, "v": v, "contrast": contrast}.items():
            page.locator(f"#dial-{name}").fill(str(value))
        noise, signal, p = *(float(f"{10 ** (x / 20):.2g}") for x in (v, contrast)), p / 100
        length, half = (identity.update_norm_squared(i, G, signal, 1.0, noise) ** 0.5 for i in (k, G // 2))
        sigma = float(identity.sigma(k, G))
        wanted = [
            sigma,
            sigma**2,
            length / half,
            length,
            identity.weight("GRPO", p, G),
            identity.weight("GRPO", 0.5, G),
        ]
        wanted += [(G - 1) / G, identity.silent_rate(p, G), identity.fidelity(p, G)]
        told = " ".join(page.locator("#numbers dd").all_inner_texts()).replace("at p = ½", "").replace("at k = ", "k")
        given = [float(x) for x in re.findall(r"(?<![k\d.])\d+\.?\d*", told.replace("under 0.001", "0"))]
        assert given == pytest.approx([float(x) for x in wanted], abs=1e-3)
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
    page.locator("#policy").select_option("GRPO, after 60 steps")  # on the problem that stands there
    page.evaluate("document.querySelector('#problem').value = '8*9'; document.querySelector('#go').click()")  # at once
    page.wait_for_function("document.querySelector('#count').textContent.includes('GRPO, after 60')")
    problem.fill(" 8+9-3? ")
    page.get_by_role("button", name="Write 8 completions").click()
    page.wait_for_function("document.querySelector('#count').textContent.includes('8+9-3 = 14')")
    assert page.locator("#refused").inner_text() == ""
    page.evaluate("for (const button of ['#draw', '#draw', '#go']) document.querySelector(button).click()")
    page.wait_for_function("document.querySelector('#group').getAttribute('aria-busy') === 'false'")
    page.wait_for_timeout(300)
    assert page.locator("#problem").input_value() == shown(page)[0]  # the last one asked for, and no other beside it


def test_drawing_until_mixed_gives_way_to_the_reader(page):
    page.evaluate(
        "while (document.querySelector('#completions .up')) document.querySelector('#completions .up').click()"
    )
    page.get_by_role("radio", name="DAPO").check()
    page.evaluate(
        "document.querySelector('#told button').click(); document.querySelector('#problem').value = '8+9-3';"
        "document.querySelector('#go').click()"
    )
    page.wait_for_function("document.querySelector('#group').getAttribute('aria-busy') === 'false'")
    page.wait_for_timeout(500)
    assert "8+9-3 = 14" in count(page) and "drawn" not in page.locator("#told").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only(browser, scheme):
    errors, requests = [], []
    page = opened(browser, errors, requests, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.get_by_role("button", name="larger").click()
    page.locator("#policy").select_option("PPO, after 60 steps")  # long completions
    page.wait_for_function("document.querySelector('#count').textContent.includes('PPO')")
    for name in ("GRPO", "Dr. GRPO", "DAPO"):
        page.get_by_role("radio", name=name, exact=True).check()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("[...document.querySelectorAll('svg')].every((svg) => svg.getAttribute('aria-label'))")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark") and not errors
    page.close()


PICTURES = """async () => { let pictures = 0;
  new MutationObserver(() => pictures++).observe(document.querySelector("#completions"), { childList: true });
  document.querySelector("#go").click();
  do await new Promise(requestAnimationFrame);
  while (document.querySelector("#group").getAttribute("aria-busy") === "true");
  return pictures }"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_completions_appear_token_by_token_but_at_once_for_who_wants_no_motion(browser, motion):
    errors, requests = [], []
    page = opened(browser, errors, requests, reduced_motion=motion)
    longest = max(shown(page)[2])
    pictures = page.evaluate(PICTURES)
    assert pictures == 1 if motion == "reduce" else pictures > longest / 4
    assert right_ones(page) == sum(shown(page)[1]) and not errors
    page.close()
