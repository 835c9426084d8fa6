"""lessons/group.html and the site in a real browser: the page's model against torch, its numbers
against the scripts, a step, strips, switches, the widths of a phone and of a desk. Skipped
without playwright and Chromium.

Broken on purpose: the model, the verifier, every formula, what a step did to a token, any step of a
strip, a second strip, switches and their reasons, the address, and what is shown, focused, moved or
cut off.
"""

import random
import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from conftest import policy_loss, value_of

from algorithms import dapo, dr_grpo, grpo
from lessons.page import build
from lessons.workshop import sources
from lessons.workshop.site import website
from toy_env import arithmetic
from toy_env.model import encode_prompts

# The tensors in the order of build.TENSORS
TENSORS = "(policy) => Object.values(policy).map((tensor) => Array.from(tensor))"
SCRIPTS, PAGE = build.SCRIPTS, build.PAGE.as_uri()
WITH_RETRIES = ("DAPO", "CISPO")  # draw until groups are mixed, and punish long completions
pytestmark = pytest.mark.slow


@contextmanager
def opened(browser, address=PAGE, **settings):
    """A page in a window of its own. Fails at the end on errors in the console and requests for
    anything but files."""
    page, faults = browser.new_page(**settings), []

    def see_request(request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            faults.append(request.url)

    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.on("request", see_request)
    page.goto(address)
    if address.startswith(PAGE):
        wait_until_written(page)
    yield page
    page.close()
    assert faults == []


@pytest.fixture
def page(browser):
    """group.html at its first batch."""
    with opened(browser) as page:
        yield page


@pytest.fixture(scope="module")
def console(browser):
    """group.html, for tests that only call its functions."""
    with opened(browser) as page:
        yield page


@pytest.fixture(scope="module")
def policy():
    """The base model in float64."""
    return build.load_policy("base")[0].double()


def logps_of(policy, base, prompt: str, ids: list[int]) -> torch.Tensor:
    """The log-probabilities (T, V) of all tokens in each place of a completion."""
    start = encode_prompts(base[1], [prompt])[0][0].tolist()
    with torch.no_grad():
        logits = policy(torch.tensor([start + ids])).logits[0, len(start) - 1 : -1]
    return logits.log_softmax(dim=-1)


# ---------------------------------------------------------------------- the model of group.html


@pytest.mark.parametrize("prompt", ["29+46-36?", "50-1-2-3-4?"])
def test_a_completion_drawn_from_fixed_random_numbers_is_that_of_torch(
    console, policy, base, prompt
):
    numbers = np.random.default_rng(1).random((3, 56)).tolist()
    script = """([prompts, numbers]) => complete(tensors(sigmaLadder.base), prompts,
        numbers.map((mine) => () => mine.shift()))"""
    for row, mine in zip(console.evaluate(script, [3 * [prompt], numbers]), numbers):
        ids, n = row["ids"], len(row["ids"])
        logps = logps_of(policy, base, prompt, ids)
        below = logps.exp().cumsum(dim=1) <= torch.tensor(mine[:n]).double()[:, None]
        assert ids == below.sum(dim=1).tolist()
        assert np.allclose(row["logps"], logps[range(n), ids], atol=1e-4)
        assert n == 56 or ids.index(base[1].eos_token_id) == n - 1


def test_the_verifier_and_the_problems_are_those_of_the_task(console):
    rng = random.Random(0)
    completions = [
        "".join(rng.choices("0123456789+-=;##", k=rng.randint(0, 9))) for _ in range(500)
    ]
    answers = console.evaluate("(all) => all.map(answer)", completions)
    assert answers == [arithmetic.extract_answer(completion) for completion in completions]
    problems = console.evaluate("[...Array(300).keys()].map((i) => drawProblem(stream(i)))")
    assert {len(re.findall("[+-]", expression)) for expression in problems} == {1, 2, 3, 4}
    values = "(all) => all.map(value)"  # null of what is no problem of the task
    assert console.evaluate(values, problems) == [*map(value_of, problems)]
    wrong = ["", "12", "12+", "12+51", "5-6", "50+50", "1+1+1+1+1+1", "1*2", "01+2", "2+0", "a"]
    assert set(console.evaluate(values, wrong)) == {None}


# ---------------------------------------------------------------------- its algorithms


# PPO's critic has a stand-in there.
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "PPO"])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.25, 10.0])
def test_pushes_are_the_gradient_of_the_script(console, name, ratio):
    """The weight of each token, without a KL, against autograd through compute_advantages and
    policy_loss."""
    script, verdicts, lengths = SCRIPTS[name], [1, 0, 0, 1], [2, 5, 56, 30]
    config, rewards = script.Config(), torch.tensor([verdicts]).double()
    mask = torch.arange(56) < torch.tensor(lengths)[:, None]
    if name in WITH_RETRIES:
        rewards = 2 * rewards - 1 + script.overlong_penalty(mask=mask, config=config)
    logps = torch.full((4, 56), np.log(ratio)).requires_grad_()
    inputs = {"old_logps": 0 * logps.detach(), "ref_logps": logps.detach(), "mask": mask}
    inputs["advantages"] = script.compute_advantages(rewards=rewards).view(-1, 1)
    policy_loss(script, logps=logps, **inputs, config=config).backward()
    group = [{"reward": R, "ids": [0] * n} for R, n in zip(verdicts, lengths)]
    push = """([name, group, ratio]) =>
        pushes(ALGORITHMS[name], group, ratio).flatMap((row) => row.tokens)"""
    weights = console.evaluate(push, [name, group, ratio])
    assert weights == pytest.approx((-logps.grad[mask]).tolist(), abs=1e-6)


# ---------------------------------------------------------------------- in use


def wait_until_written(page) -> None:
    page.wait_for_function("document.body.getAttribute('aria-busy') === 'false'")
    page.wait_for_selector("#group button")


def redraw(page) -> None:
    """Wait until what was asked for is on the screen."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def wait_until_trained(page, steps: int, lane: int = 0) -> None:
    trained = f"sigmaLadder.lanes[{lane}]?.steps >= {steps} && train.textContent === 'Train'"
    page.wait_for_function(trained, timeout=120_000)
    redraw(page)


def take_a_step(page, steps: int) -> None:
    page.click("#one")
    wait_until_trained(page, steps)


def text_of(page, selector: str) -> str:
    return page.locator(selector).first.inner_text()


def texts(page) -> list[str]:
    """The completions in the magnifier."""
    tokens = "[...row.querySelectorAll('i')].map((token) => token.textContent)"
    script = f"(all) => all.map((row) => {tokens}.join(''))"
    return page.locator("#group li").evaluate_all(script)


def shown(page) -> tuple[str, list[int]]:
    """The problem, and a 1 for each completion that counts as right."""
    verdicts = page.locator("#group button").all_inner_texts()
    expression = re.search(r"(\S+) = ", text_of(page, "#title"))[1].replace("−", "-")
    return expression, [int("✓" in text) for text in verdicts]


def test_a_reader_flips_verdicts_and_gives_a_problem(page):
    completions, rewards = [text.removesuffix("∎") for text in texts(page)], shown(page)[1]
    problem = arithmetic.Problem("33+41-39-26+11", 20, 0)
    assert rewards == [arithmetic.reward(problem, completion) for completion in completions]
    page.locator("#group button").first.focus()
    for wanted in (1 - rewards[0], rewards[0]):
        page.keyboard.press("Space")  # the focus is still there the second time
        redraw(page)
        assert shown(page)[1] == [wanted, *rewards[1:]]
    for _ in range(sum(rewards)):  # all become wrong
        page.locator("#group .up").first.click()
        redraw(page)
    assert "silent" in text_of(page, "#explained")
    assert page.locator("#group i[class='pos'], #group i[class='neg']").count() == 0
    title = text_of(page, "#title")
    page.fill("#problem", "5+3−9")
    page.click("#one")  # what is typed counts, also where it was not submitted
    page.wait_for_function("refused.textContent && train.textContent === 'Train'")
    assert "= −1" in text_of(page, "#refused") and text_of(page, "#title") == title
    page.fill("#problem", " 8+9−3? ")  # with a typographic minus
    take_a_step(page, 1)
    assert page.evaluate("sigmaLadder.lanes[0].columns[0].groups[0][0].prompt") == "8+9-3?"


# ---------------------------------------------------------------------- training


def test_a_step_shows_what_it_did_to_a_token_and_its_address_opens_at_once(browser, page, base):
    """Probabilities after it against torch; the strip in the link, which trains again."""
    take_a_step(page, 1)
    weights = f"() => ({TENSORS})(tensors(sigmaLadder.lanes[0].trainer.policy.weights))"
    trained, stepped = page.evaluate(weights), build.load_policy("base")[0].double()
    for key, tensor in zip(build.TENSORS, trained, strict=True):
        weight = stepped.state_dict()[key]
        weight.copy_(torch.tensor(tensor).double().view_as(weight))
    group = page.evaluate(
        "(({ lane, column, group }) => lane.columns[column].groups[group])(sigmaLadder.selected())"
    )
    for row in group:
        exact = logps_of(stepped, base, row["prompt"], row["ids"])
        assert np.allclose(row["after"], exact[range(len(row["ids"])), row["ids"]], atol=1e-3)
    page.locator("#group button").first.press("ArrowRight")  # to its first token
    shares = (f"{float(f'{100 * np.exp(group[0][name][0]):.2g}'):g}" for name in ("logps", "after"))
    assert "probability {}\xa0% → {}\xa0%".format(*shares) in text_of(page, "#numbers")
    rows = "sigmaLadder.lanes[0].columns[0].groups.flat()"
    strip = f"{rows}.map((row) => [row.verdict, row.ids.length])"
    with opened(browser, page.evaluate("location.href")) as again:
        assert again.evaluate("sigmaLadder.lanes[0].trainer.steps") == 0
        assert again.evaluate(strip) == page.evaluate(strip)
        take_a_step(again, 1)
        assert texts(again) == texts(page) and again.evaluate(weights) == trained


def test_the_strip_shows_any_step_and_training_goes_on(page):
    # Smaller steps: two problems of four completions, and eight held-out problems
    small = "Object.assign(SETTINGS, { prompts_per_step: 2, group_size: 4, num_minibatches: 2 })"
    page.evaluate(f"() => {{ {small}; sigmaLadder.world.heldOut.length = 8; }}")
    for name in ("RLOO", "GRPO"):
        page.select_option("#preset", name)
    page.wait_for_function("document.querySelectorAll('#group button').length === 4")
    take_a_step(page, 1)
    page.click("#train")
    page.wait_for_function("sigmaLadder.lanes[0].steps >= 3", timeout=60_000)
    page.click("#train")  # Stop
    wait_until_trained(page, 3)
    strip, steps = page.locator(".strip"), page.evaluate("sigmaLadder.lanes[0].steps")
    strip.click(position={"x": 3, "y": 10})
    redraw(page)
    assert text_of(page, "#title").startswith("Step 1 ")
    for key in ("End", "ArrowDown", "ArrowLeft"):
        strip.press(key)
    redraw(page)
    assert text_of(page, "#title").startswith(f"Step {steps - 1} ")
    assert "group 2" in strip.get_attribute("aria-valuetext")


def test_switches_lead_from_grpo_to_dr_grpo_and_dapo_and_show_what_the_scripts_compute(page):
    """After each switch the changed code and its reason; after a flip the advantages, the way each
    token is pushed, and what it is divided by."""
    reasons = {f"{tag}. {why}" for tag, why in build.reasons().items()}
    lengths, limit, tokens = r"/ \(8 × \d+ tokens\)", r"/ \(8 × 56\)", r"/ \d+ tokens"
    page.locator("#group button").first.press("ArrowRight")  # a token with a push
    for label, name, script, divisor in (
        ("", "GRPO", grpo, lengths),
        ("÷ length", "GRPO", grpo, limit),
        ("÷ σ", "Dr. GRPO", dr_grpo, limit),
        ("÷ σ", "Dr. GRPO", grpo, limit),
        ("KL", "Dr. GRPO", grpo, limit),
        ("clip-higher", "Dr. GRPO", grpo, limit),
        ("replace silent groups", "DAPO", dapo, tokens),
    ):
        if label:
            page.get_by_role("switch", name=label).click()
            page.wait_for_function("sigmaLadder.lanes[0].columns.length")
            redraw(page)
            assert page.locator("#code .plus, #code .minus").count() > 0
            assert text_of(page, "#why p") in reasons
        assert page.locator("#preset").input_value() == name
        page.locator("#group button").nth(4).click()
        redraw(page)
        rewards = torch.tensor([shown(page)[1]]).double()
        assert 0 < rewards.sum() < 8 and re.search(divisor, text_of(page, "#numbers"))
        A = script.compute_advantages(rewards=rewards)[0].tolist()
        shares = page.locator("#group button span").all_inner_texts()
        assert [float(text.replace("−", "-")) for text in shares] == pytest.approx(A, abs=0.00501)
        for line, R in zip(page.locator("#group li").all(), rewards[0]):
            other = line.locator(f".tokens i:not([class~='{'pos' if R else 'neg'}'])")
            assert other.count() == 0


def test_a_second_strip_has_the_same_problems_and_three_seeds_decide(page):
    page.evaluate("sigmaLadder.world.heldOut.length = 8")
    take_a_step(page, 1)
    page.get_by_role("switch", name="÷ σ").click()
    assert page.locator(".strip").count() == 1, "nothing is lost"
    page.click("#again")
    wait_until_trained(page, 1, lane=1)
    script = """sigmaLadder.lanes.map(({ columns, trainer }) => [
        columns[0].groups.flat().map((row) => [row.prompt, row.ids]),
        [...trainer.policy.weights]])"""
    (batch, weights), (other, others) = page.evaluate(script)
    assert sorted(batch) == sorted(other) and weights != others
    page.get_by_role("button", name="Remove GRPO, without ÷ σ").click()
    page.wait_for_function("document.querySelectorAll('.strip').length === 1")
    compared = """() => {
        const lane = (shares) => ({ accuracy: [[0, 0.4], [60, shares[0]]], steps: 60, name: "x",
            seeds: shares.slice(1).map((share) => ({ accuracy: [[60, share]], steps: 60 })) });
        const a = lane([0.8, 0.82, 0.81]), b = lane([0.9, 0.91, 0.92]), c = lane([0.8, 0.9, 0.7]);
        return [[a, lane([0.9])], [a, b], [a, c]].map(sigmaLadder.compared);
    }"""
    one, apart, close = page.evaluate(compared)  # .81 with half of 4.303 * .01 / sqrt(3) = .025
    assert "may be luck" in one and "x 81.0 % (78.5 to 83.5), x 91.0 % (88.5 to 93.5)" in apart
    assert "do not overlap" in apart and "cannot tell them apart" in close


def test_mistakes_of_the_clinic_are_made(console):
    """Two steps of the page's training with each: the patches' effects, and no other."""
    made = console.evaluate("""async () => {
        const found = {}, weights = sigmaLadder.base;
        for (const mistake of ["", "same_prompts", "verifier_lax", "stale_sampler", "kl_sign"]) {
            const algorithm = { ...ALGORITHMS.GRPO, mistake, prompts_per_step: 2 }, prompts = [];
            const pool = new Pool(), share = pool.share.bind(pool), samplers = [];
            pool.share = (kind, sent, rows) => {
                if (kind === "sample") samplers.push(sent);
                return share(kind, sent, rows);
            };
            const trainer = new Trainer({ weights, pool, algorithm });
            for (let step = 0; step < 2; step++) {
                await trainer.step();
                prompts.push(trainer.batch.drawn.flat().map((row) => row.prompt));
            }
            const base = samplers.every((sent) => sent === weights);
            const coef = trainer.config.kl_coef, anywhere = trainer.reward("1;39;2#40", 39);
            found[mistake] = { base, coef, prompts, anywhere };
        }
        return found; }""")
    for name, one in made.items():
        effects = {
            "same_prompts": one["prompts"][0] == one["prompts"][1],
            "verifier_lax": one["anywhere"] == 1,
            "stale_sampler": one["base"],
            "kl_sign": one["coef"] == -0.04,
        }
        assert [effect for effect in effects if effects[effect]] == ([name] if name else [])
    offered = console.locator("#broken option").evaluate_all("(all) => all.map((one) => one.value)")
    assert {"", *build.patches()} == set(made) == set(offered)


@pytest.mark.parametrize(
    "hash",
    ["run=constructor", "run=__proto__,valueOf,toString", "run=GRPO,,,x", "run=GRPO,,,AAAAAg=="],
)
def test_an_address_that_makes_no_sense_is_a_page_that_works(browser, hash):
    with opened(browser, f"{PAGE}#{hash}") as page:
        assert shown(page)[0] == "33+41-39-26+11" and text_of(page, "figcaption b") == "GRPO"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_at_once_and_has_room_for_fingers(browser, scheme):
    with opened(browser, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        ends = "(all) => all.map((one) => one.getBoundingClientRect().bottom)"
        first = page.locator(".strip, #title, #group li:nth-child(-n + 7)").evaluate_all(ends)
        assert max(first) <= page.locator("#bar").bounding_box()["y"] < 844
        script = "(all) => all.map((one) => one.getBoundingClientRect().height).filter((y) => y)"
        assert min(page.locator("button, select, input").evaluate_all(script)) >= 44
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colour != "rgb(255, 255, 255)") == (scheme == "dark")


# ---------------------------------------------------------------------- the site

CUT_OFF = "[...document.querySelectorAll('pre')].some((x) => x.scrollWidth > x.clientWidth + 1)"
LOADED = """async () => {
    const images = [...document.images].map((image) => image.decode());
    await Promise.all(images);
    const formulas = [...document.querySelectorAll("math")];
    return formulas.every((math) => math.getBoundingClientRect().height > 4); }"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the whole site."""
    pytest.importorskip("latex2mathml", reason="pip install -e '.[page]'")
    return website.write_site(sources.reading_order(), tmp_path_factory.mktemp("site")).parent


def test_pages_fit_the_window_and_show_pictures_and_formulas(browser, site):
    """At the width of a phone and of a desk, with everything unfolded."""
    with opened(browser, (site / "index.html").as_uri()) as page:
        for path in sorted(site.rglob("*.html")):
            page.goto(path.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach((x) => { x.open = true; })")
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 850})
                needed = page.evaluate("document.documentElement.scrollWidth")
                assert needed <= width, f"{path.name} at {width}"
            assert page.evaluate(LOADED), path.name
            page.emulate_media(media="print")
            cut_off = page.evaluate(CUT_OFF)
            page.emulate_media(media="screen")
            assert not cut_off or path.name == "group.html", f"{path.name} cuts code off on paper"
