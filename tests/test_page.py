"""lessons/group.html in a real browser: its model against torch, its numbers against the scripts, its controls."""

import random
import re
import shutil

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


@pytest.fixture(scope="module")
def browser():
    """Chromium; skips where it or playwright is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="for the page in a browser: pip install -e '.[page]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("for the page in a browser: apt install chromium, or another Chrome on the PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


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

    packed = base64.b64decode(build.weights_of(build.PAGE.read_text()))
    return dict(zip(NAMES, map(build.policy_of, build.unpack(packed)), strict=True))


def logits_of(policy, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return policy(torch.tensor([ids])).logits[0]


# ---------------------------------------------------------------------- the file


def test_the_page_is_built_from_its_sources_and_is_small():
    page = build.PAGE.read_text()
    assert build.page_of(build.weights_of(page)) == page, "run python lessons/page/build.py"
    assert len(page.encode()) <= 2.5e6
    written = [path for path in build.SOURCES.iterdir() if path.suffix in (".js", ".css", ".html", ".py")]
    assert sum(len(path.read_text().splitlines()) for path in written) < 1200
    ids = re.findall(r'\bid="([\w-]+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r'\$\("([\w-]+)"\)', page)) <= {*ids, "dial-k"}


def test_weights_survive_packing():
    base = build.rows_of(load_policy("base")[0])
    rng = np.random.default_rng(0)
    other = [tensor + rng.normal(0, 0.01, tensor.shape).astype(np.float32) for tensor in base]
    first, second = build.unpack(build.pack(base, [other]))
    assert all(np.array_equal(a, b) for a, b in zip(base, first))
    for a, b, c in zip(base, other, second):
        assert (np.abs(b - c) <= np.abs(b - a).max(axis=1, keepdims=True) / 254 + 1e-7).all()


def test_the_base_on_the_page_is_the_shipped_one(policies):
    for a, b in zip(build.rows_of(policies[build.BASE]), build.rows_of(load_policy("base")[0])):
        assert np.array_equal(a, b)


# ---------------------------------------------------------------------- the model


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
        assert np.abs(np.array(ours) - logits_of(policies[name], ids).numpy()).max() < 1e-4  # torch computes the angles in float32
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
    drawn = console.evaluate("[...Array(300).keys()].map((seed) => sigmaLadder.draw(sigmaLadder.stream(seed)))")
    values = console.evaluate("(all) => all.map(sigmaLadder.value)", drawn)
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
    ratio = rng.choice([1.0, 0.5, 0.85, 0.995, 1.005, 1.1, 1.25, 1.4, 3.0, 5.5])
    return [int(rng.random() < 0.5) for _ in range(G)], [rng.randint(1, 56) for _ in range(G)], ratio


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


def test_the_coefficient_of_a_group_is_a_power_of_sigma(console):
    """sigma for GRPO, sigma squared for Dr. GRPO: with independent scores, g = coefficient * contrast."""
    for G in (2, 3, 8):
        for k in range(1, G):
            rewards, sigma = [1] * k + [0] * (G - k), float(identity.sigma(k, G))
            for name, size in (("GRPO", sigma), ("DAPO", sigma), ("Dr. GRPO", sigma**2)):
                both = console.evaluate("(given) => sigmaLadder.coefficients(...given)", [name, rewards, [4] * G])
                assert both == pytest.approx({"right": size, "wrong": -size}, abs=1e-12)


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
                "(x) => sigmaLadder.closed.length(...x)", [k, G, 0.3, 1.5, 0.7]
            ) ** 2 == pytest.approx(squared)


# ---------------------------------------------------------------------- in a reader's hands


def count(page) -> str:
    return page.locator("#count").inner_text()


def test_turning_a_verdict_changes_the_update_and_comes_back(page):
    k = int(re.search(r"k = (\d)", count(page))[1])
    first = page.locator("#completions button").first
    right = "right" in first.inner_text()
    before = page.locator("#completions li").nth(5).locator(".amount").inner_text()
    first.focus()
    page.keyboard.press("Space")
    assert f"k = {k - 1 if right else k + 1} of" in count(page) and "turned around by you" in count(page)
    assert page.locator("#completions li").nth(5).locator(".amount").inner_text() != before
    assert page.evaluate("document.activeElement.dataset.row") == "0"  # the keyboard stays where it was
    page.keyboard.press("Space")
    assert f"k = {k} of" in count(page) and "turned" not in count(page)


def test_a_silent_group_is_said_to_be_silent_and_dapo_draws_until_one_is_mixed(page):
    while page.locator("#completions button:has-text('right')").count():
        page.locator("#completions button:has-text('right')").first.click()
    assert "k = 0 of" in count(page) and "the group is silent" in page.locator("#told").inner_text()
    assert page.locator("#cards .silent").count() == 9  # REINFORCE too: nothing is right
    assert page.evaluate("[...document.querySelectorAll('.tokens i')].every((i) => i.className === '')")
    page.get_by_role("radio", name="DAPO").check()
    assert "throws this group away" in page.locator("#told").inner_text()
    problem = page.locator("#problem").input_value()
    page.get_by_role("button", name="Draw problems until").click()
    page.wait_for_function("document.querySelector('#told').textContent.includes('drawn')")
    k = int(re.search(r"k = (\d)", count(page))[1])
    assert 0 < k < 8 and page.locator("#problem").input_value() != problem


def test_the_switch_shows_the_code_that_differs(page):
    marked = {}
    for name in ("GRPO", "Dr. GRPO", "DAPO"):
        page.get_by_role("radio", name=name, exact=True).check()
        marked[name] = page.locator("#code .plus").all_inner_texts()
        assert page.locator("#told").inner_text().startswith(name)
    assert any("/ sigma" in line for line in marked["GRPO"]) and any(
        "no / sigma" in line for line in marked["Dr. GRPO"]
    )
    assert any("token mean" in line for line in marked["DAPO"])


def test_the_ratio_stops_tokens_on_one_side(page):
    page.locator("#ratio").focus()
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    assert page.locator("#ratio-out").inner_text() == "1.28"
    text = {card.get_attribute("data-name"): card.inner_text() for card in page.locator("#cards article").all()}
    right = page.evaluate(
        "[...document.querySelectorAll('#completions li')].filter((li) => li.textContent.includes('right'))"
        ".reduce((n, li) => n + li.querySelectorAll('.tokens i').length, 0)"
    )
    assert f"{right} of" in text["GRPO"] and f"{right} of" in text["GSPO"] and "nothing is stopped" in text["CISPO"]
    page.keyboard.press("Home")
    assert page.locator("#ratio-out").inner_text() == "0.50"


def test_the_dial_opens_after_a_guess_and_follows_its_sliders(page):
    assert page.locator("#open").is_hidden()
    page.get_by_role("button", name="larger").click()
    assert page.locator("#open").is_visible() and page.locator("#verdict").inner_text().startswith("About two thirds")
    assert page.locator("#plots svg").count() == 3 and "2.264" in page.locator("#numbers").inner_text()
    page.locator("#dial-k").focus()
    page.keyboard.press("End")
    page.locator("#dial-G").focus()
    before = page.locator("#plots").inner_html()
    page.keyboard.press("Home")  # G = 2, so that k may not stay at 8
    assert page.locator("#dial-k-out").inner_text() == "2" == page.locator("#dial-G-out").inner_text()
    assert page.locator("#plots").inner_html() != before
    flat = [page.evaluate("(p) => sigmaLadder.closed.weight(p, 2)", p) for p in (0.1, 0.5, 0.9)]
    assert flat == pytest.approx([1, 1, 1])
    for name in ("p", "v", "contrast"):
        before = page.locator("#plots").inner_html() + page.locator("#numbers").inner_text()
        page.locator(f"#dial-{name}").focus()
        page.locator("#dial-G").fill("8")
        page.locator("#dial-k").fill("3")
        page.locator(f"#dial-{name}").fill({"p": "0.3", "v": "7", "contrast": "3"}[name])
        assert page.locator("#plots").inner_html() + page.locator("#numbers").inner_text() != before


def test_another_policy_and_problem_and_what_is_no_problem(page):
    page.locator("#policy").select_option("GRPO, after 60 steps")
    page.locator("#problem").fill("8+9-3?")
    page.get_by_role("button", name="Write 8 completions").click()
    page.wait_for_function("document.querySelector('#count').textContent.startsWith('8+9-3 = 14')")
    before = count(page)
    page.locator("#problem").fill("8*9")
    page.keyboard.press("Enter")
    assert "Not a problem of this task" in page.locator("#refused").inner_text() and count(page) == before
    page.get_by_role("button", name="Draw another").click()
    page.wait_for_function("(old) => document.querySelector('#count').textContent !== old", arg=before)
    assert page.locator("#refused").inner_text() == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only(browser, scheme):
    errors, requests = [], []
    page = opened(browser, errors, requests, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.get_by_role("button", name="larger").click()
    page.locator("#policy").select_option("PPO, after 60 steps")  # long completions
    page.wait_for_timeout(200)
    wait(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("[...document.querySelectorAll('svg')].every((svg) => svg.getAttribute('aria-label'))")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark") and not errors
    page.close()
