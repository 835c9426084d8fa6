"""lessons/group.html and the site in a real browser: the page's model against torch, its numbers
against the scripts, a step, strips, switches, sliders, the widths of a phone and of a desk. Skipped
without playwright and Chromium.

Broken on purpose: the model, the verifier, every formula, what a step did to a token, any step of a
strip, a second strip, switches and their reasons, the address, and what is shown, focused, moved or
cut off.
"""

import json
import random
import re
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pytest
import torch

from lessons.page import build
from lessons.workshop import sources
from lessons.workshop.site import drawn, website
from toy_env import arithmetic
from toy_env.model import encode_prompts

# The tensors in the order of build.TENSORS
TENSORS = "(policy) => Object.values(policy).map((tensor) => Array.from(tensor))"
SCRIPTS, PAGE = build.SCRIPTS, build.PAGE.as_uri()
WITH_RETRIES = ("DAPO", "CISPO")  # draw until groups are mixed, and punish long completions
LOCAL = ("file:", "data:", "blob:")
UNFOLD = "for (const details of document.querySelectorAll('details')) details.open = true"
pytestmark = pytest.mark.slow


@contextmanager
def opened(browser, address=PAGE, **settings):
    """A page in a window of its own. Fails at the end on errors in the console and requests for
    anything but files."""
    page, faults = browser.new_page(**settings), []

    def see(event, text: str) -> None:
        if getattr(event, "type", "") not in ("log", "info") and not text.startswith(LOCAL):
            faults.append(text)

    page.on("pageerror", lambda error: see(error, str(error)))
    page.on("console", lambda message: see(message, message.text))
    page.on("request", lambda request: see(request, request.url))
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


def load_weights(model, tensors: list):
    """The model in float64 with the tensors of the page."""
    model = model.double()
    for key, tensor in zip(build.TENSORS, tensors, strict=True):
        weight = model.state_dict()[key]
        weight.copy_(torch.tensor(tensor).double().view_as(weight))
    return model


@pytest.fixture(scope="module")
def policy():
    """The base model in float64."""
    return build.load_policy("base")[0].double()


def prompt_ids(base, prompt: str) -> list[int]:
    return encode_prompts(base[1], [prompt])[0][0].tolist()


def logits_of(policy, start: list[int], completion: list[int]) -> torch.Tensor:
    """The logits (T, V) that a completion's tokens are drawn from, and those of one more token."""
    with torch.no_grad():
        return policy(torch.tensor([start + completion])).logits[0, len(start) - 1 :]


# ---------------------------------------------------------------------- the model of group.html


@pytest.mark.parametrize("prompt", ["29+46-36?", "50-1-2-3-4?"])
def test_a_completion_drawn_from_fixed_random_numbers_is_that_of_torch(
    console, policy, base, prompt
):
    rng, eos = random.Random(prompt), base[1].eos_token_id
    numbers = [rng.random() for _ in range(3 * 56)]
    script = """([prompts, numbers]) =>
        complete(tensors(sigmaLadder.base), prompts, prompts.map(() => () => numbers.shift()))"""
    rows = console.evaluate(script, [3 * [prompt], numbers])
    stream, used = iter(numbers), [[], [], []]
    for t in range(56):  # a token of each row that has not ended, in turn
        for row, mine in zip(rows, used):
            if t < len(row["ids"]):
                mine.append(next(stream))
    start = prompt_ids(base, prompt)
    for row, mine in zip(rows, used):
        logits = logits_of(policy, start, row["ids"])[:-1]
        exact = torch.distributions.Categorical(logits=logits)
        below = exact.probs.cumsum(dim=1) <= torch.tensor(mine).double()[:, None]
        ids = below.sum(dim=1).clamp(max=18)
        assert row["ids"] == ids.tolist() and eos not in row["ids"][:-1]
        assert np.allclose(row["logps"], exact.log_prob(ids), atol=1e-4)
        assert (row["ids"][-1] != eos) == (len(ids) == 56)


def test_the_verifier_and_the_problems_are_those_of_the_task(console):
    rng = random.Random(0)
    completions = [
        "".join(rng.choices("0123456789+-=;##", k=rng.randint(0, 9))) for _ in range(500)
    ]
    answers = console.evaluate("(all) => all.map(answer)", completions)
    assert answers == [arithmetic.extract_answer(completion) for completion in completions]
    draw = "[...Array(300).keys()].map((i) => drawProblem(stream(i)))"
    problems, values = console.evaluate(draw), "(all) => all.map(value)"
    assert {len(re.findall("[+-]", expression)) for expression in problems} == {1, 2, 3, 4}
    for expression, value in zip(problems, console.evaluate(values, problems)):
        totals = [*accumulate(int(x) for x in re.findall(r"[+-]?\d+", expression))]
        assert value == totals[-1] and min(totals) >= 0 and max(totals) <= 99
    wrong = ["", "12", "12+", "12+51", "5-6", "50+50", "1+1+1+1+1+1", "1*2", "01+2", "2+0", "a"]
    assert set(console.evaluate(values, wrong)) == {None}


# ---------------------------------------------------------------------- its algorithms


def loss_of(script, **inputs) -> torch.Tensor:
    """A script's policy_loss, called with those of the inputs that it takes."""
    names = script.policy_loss.__annotations__
    return script.policy_loss(**{name: inputs[name] for name in inputs if name in names})


# PPO's critic has a stand-in there.
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "PPO"])
def test_pushes_are_the_gradient_of_the_script(console, name):
    """Advantages against compute_advantages, and the weight of each token against autograd through
    policy_loss."""
    script, verdicts, lengths = SCRIPTS[name], [1, 0, 0, 1], [2, 5, 56, 30]
    config = script.Config(**({"kl_coef": 0.0} if hasattr(script.Config, "kl_coef") else {}))
    rewards = torch.tensor([verdicts]).double()
    mask = torch.arange(56) < torch.tensor(lengths)[:, None]
    if name in WITH_RETRIES:
        rewards = 2 * rewards - 1 + script.overlong_penalty(mask=mask, config=config)
    A = script.compute_advantages(rewards=rewards).view(-1, 1)
    inputs = {"advantages": A, "ref_logps": None, "mask": mask, "config": config}
    for ratio in (0.5, 1.0, 1.25, 10.0):
        old = torch.full(mask.shape, -1.0).double()
        logps = (old + np.log(ratio)).requires_grad_()
        loss_of(script, logps=logps, old_logps=old, **inputs).backward()
        group = [{"reward": R, "ids": [0] * n} for R, n in zip(verdicts, lengths)]
        push = "([name, group, ratio]) => pushes(ALGORITHMS[name], group, ratio)"
        rows = console.evaluate(push, [name, group, ratio])
        assert [row["advantage"] for row in rows] == pytest.approx(A[:, 0].tolist(), abs=1e-6)
        weights = [weight for row in rows for weight in row["tokens"]]
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


def choose(page, name: str) -> None:
    page.select_option("#preset", name)
    first = f"sigmaLadder.lanes[0].columns.length && sigmaLadder.lanes[0].choice.name === '{name}'"
    page.wait_for_function(f"sigmaLadder.lanes[0].steps || ({first})")
    redraw(page)


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


def hurry(page) -> None:
    """Smaller steps: two problems of four completions, and eight held-out problems."""
    small = "Object.assign(SETTINGS, { prompts_per_step: 2, group_size: 4, num_minibatches: 2 })"
    page.evaluate(f"() => {{ {small}; sigmaLadder.world.heldOut.length = 8; }}")
    choose(page, "RLOO")
    choose(page, "GRPO")
    page.wait_for_function("document.querySelectorAll('#group button').length === 4")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_a_reader_flips_verdicts_and_gives_a_problem(page):
    written, rewards = texts(page), shown(page)[1]
    problem = arithmetic.Problem("33+41-39-26+11", 20, 0)
    completions = [text.removesuffix("∎") for text in written]
    assert rewards == [arithmetic.reward(problem, completion) for completion in completions]
    before = page.locator("#group button").all_inner_texts()
    page.locator("#group button").first.focus()
    for wanted in (1 - rewards[0], rewards[0]):
        page.keyboard.press("Space")  # the focus is still there the second time
        redraw(page)
        assert shown(page)[1] == [wanted, *rewards[1:]]
    assert page.locator("#group button").all_inner_texts() == before
    numbers = text_of(page, "#numbers")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert text_of(page, "#numbers") != numbers and "A / (8 ×" in text_of(page, "#numbers")
    for colour in ("up", "down"):  # all become wrong, then right
        for _ in range(page.locator(f"#group .{colour}").count()):
            page.locator(f"#group .{colour}").first.click()
            redraw(page)
        assert "silent" in text_of(page, "#explained")
        assert page.locator("#group i[class='pos'], #group i[class='neg']").count() == 0
    box, title = page.locator("#problem"), text_of(page, "#title")
    for wrong, reason in {"8+90": "and 90 is not", "5+3−9": "= −1"}.items():
        box.fill(wrong)
        page.click("#one")  # what is typed counts, also where it was not submitted
        page.wait_for_function("train.textContent === 'Train'")
        assert reason in text_of(page, "#refused") and text_of(page, "#title") == title
    box.fill(" 8+9−3? ")  # with a typographic minus
    take_a_step(page, 1)
    prompts = page.evaluate("sigmaLadder.lanes[0].columns[0].groups.map(([row]) => row.prompt)")
    assert prompts[0] == "8+9-3?" and len(prompts) == 8


@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO", "DAPO"])
def test_texts_and_colours_show_what_the_script_computes(page, name):
    """The changed code, and after each flip the advantages in the rows, and which tokens go which
    way."""
    choose(page, "RLOO")
    choose(page, name)
    new = {"GRPO": "/ sigma", "Dr. GRPO": "no / sigma", "DAPO": "dynamic sampling"}[name]
    assert any(new in line for line in page.locator("#code .plus").all_text_contents())
    for row in range(8):
        page.locator("#group button").nth(row).click()
        redraw(page)
        rewards = torch.tensor([shown(page)[1]])
        if rewards.sum() in (0, 8):
            continue
        A = SCRIPTS[name].compute_advantages(rewards=rewards.double())[0]
        amounts = [number(text) for text in page.locator("#group button span").all_inner_texts()]
        assert amounts == pytest.approx(A.tolist(), abs=0.00501)
        for line, R in zip(page.locator("#group li").all(), rewards[0]):
            other = line.locator(f".tokens i:not([class~='{'pos' if R else 'neg'}'])")
            assert other.count() == 0


# ---------------------------------------------------------------------- training


def test_a_step_shows_what_it_did_to_a_token_and_its_address_opens_at_once(
    browser, page, policy, base
):
    """Probabilities before and after against torch; the strip in the link, which trains again."""
    take_a_step(page, 1)
    weights = f"() => ({TENSORS})(tensors(sigmaLadder.lanes[0].trainer.policy.weights))"
    state = page.evaluate(weights)
    stepped = load_weights(build.load_policy("base")[0], state)
    group = page.evaluate(
        "(({ lane, column, group }) => lane.columns[column].groups[group])(sigmaLadder.selected())"
    )
    for model, name in ((policy, "logps"), (stepped, "after")):
        for row in group:
            table = logits_of(model, prompt_ids(base, row["prompt"]), row["ids"])[:-1]
            exact = table.log_softmax(dim=-1).gather(1, torch.tensor(row["ids"])[:, None])[:, 0]
            assert np.abs(np.array(row[name]) - exact.numpy()).max() < 1e-3
    moves = [
        (2 * row["reward"] - 1) * (np.exp(row["after"]) - np.exp(row["logps"])) for row in group
    ]
    i = np.argmax([move.max() for move in moves])
    t = np.argmax(moves[i])
    before, after = (float(f"{100 * np.exp(group[i][name][t]):.2g}") for name in ("logps", "after"))
    assert f"probability {before:g}\xa0% → {after:g}\xa0%" in text_of(page, "#numbers")
    for shown_after in (False, True):  # only of what was trained
        page.get_by_role("switch", name="÷ σ").click()
        redraw(page)
        assert ("→" in text_of(page, "#numbers")) is shown_after
    link, verdicts = page.locator("#link").evaluate("(link) => link.href"), shown(page)[1]
    assert page.evaluate("location.href") == link
    strip = (
        "sigmaLadder.lanes[0].columns[0].groups.flat().map((row) => [row.verdict, row.ids.length])"
    )
    with opened(browser, link) as again:
        assert again.evaluate("sigmaLadder.lanes[0].trainer.steps") == 0
        assert again.evaluate(strip) == page.evaluate(strip) and "1 of 8" in text_of(
            again, "#title"
        )
        assert [int("✓" in x) for x in again.locator("#group button").all_inner_texts()] == verdicts
        take_a_step(again, 1)
        assert texts(again) == texts(page) and again.evaluate(weights) == state


def test_the_strip_shows_any_step_and_training_goes_on(page):
    hurry(page)
    take_a_step(page, 1)
    assert page.evaluate("document.activeElement.id") == "one", "the focus stays"
    first = texts(page)
    page.click("#train")
    page.wait_for_function("sigmaLadder.lanes[0].steps >= 3", timeout=60_000)
    page.click("#train")  # Stop
    wait_until_trained(page, 3)
    strip = page.locator(".strip")
    box = strip.bounding_box()
    page.mouse.click(box["x"] + 3, box["y"] + 10)
    redraw(page)
    assert text_of(page, "#title").startswith("Step 1 ")
    strip.focus()
    for key in ("End", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    redraw(page)
    steps = page.evaluate("sigmaLadder.lanes[0].columns.length")
    assert text_of(page, "#title").startswith(f"Step {steps - 1} ")
    assert "group 2" in strip.get_attribute("aria-valuetext")
    page.evaluate("sigmaLadder.lanes[0].trainer.config.learning_rate = 1e30")
    page.click("#one")
    page.wait_for_function("alarm.textContent", timeout=60_000)
    assert "diverged" in text_of(page, "#alarm") and first
    assert page.evaluate("sigmaLadder.lanes[0].steps") == steps


def test_a_switch_changes_the_algorithm_its_code_and_says_why(page):
    """Every switch of every algorithm; those of GRPO lead to Dr. GRPO and to DAPO."""
    reasons = {f"{tag}. {why}" for tag, why in build.reasons().items()}
    hurry(page)
    for name in SCRIPTS:
        choose(page, name)
        for switch in page.locator("[role=switch]").all():
            if switch.get_attribute("aria-disabled") == "true":
                continue
            state = switch.get_attribute("aria-checked")
            switch.click()
            page.wait_for_function("sigmaLadder.lanes[0].columns.length")
            redraw(page)
            assert switch.get_attribute("aria-checked") != state
            assert page.locator("#code .plus, #code .minus").count() > 0
            assert text_of(page, "#why p") in reasons
            switch.click()  # back
            redraw(page)
            assert page.locator("#preset").input_value() == name
    choose(page, "GRPO")
    for label in ("÷ σ", "÷ length"):
        page.get_by_role("switch", name=label).click()
    redraw(page)
    assert page.locator("#preset").input_value() == "Dr. GRPO"
    for label in ("÷ σ", "KL", "clip-higher", "replace silent groups"):
        page.get_by_role("switch", name=label).click()
    redraw(page)
    assert page.locator("#preset").input_value() == "DAPO"


def test_a_second_strip_has_the_same_problems_and_three_seeds_decide(page):
    page.evaluate("sigmaLadder.world.heldOut.length = 8")
    take_a_step(page, 1)
    page.get_by_role("switch", name="÷ σ").click()
    assert page.locator(".strip").count() == 1, "nothing is lost"
    page.click("#again")
    wait_until_trained(page, 1, lane=1)
    assert page.evaluate("document.activeElement.id") == "train"
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


def test_a_seed_that_was_stopped_goes_on(page):
    page.evaluate("sigmaLadder.world.heldOut.length = 8")
    take_a_step(page, 1)
    page.evaluate("sigmaLadder.lanes[0].trainer.steps = 60")
    page.get_by_role("switch", name="÷ σ").click()
    page.wait_for_selector("#next:not([hidden])")  # after a run without DAPO's replacement
    page.evaluate("sigmaLadder.lanes[0].trainer.steps = 1")
    page.click("#next")
    wait_until_trained(page, 1, lane=1)
    assert page.evaluate("sigmaLadder.lanes[1].name") == "DAPO"
    page.evaluate("for (const lane of sigmaLadder.lanes) lane.trainer.steps = 60")
    page.get_by_role("switch", name="÷ σ").click()
    begun = "sigmaLadder.lanes[0].begun[0]"
    page.click("#seeds")
    page.wait_for_function(f"{begun}?.steps >= 1")
    page.click("#train")
    page.wait_for_selector("#seeds:not([hidden])")
    before = page.evaluate(f"(globalThis.kept = {begun}).steps")
    page.click("#seeds")
    page.wait_for_function(f"{begun} === kept && kept.steps > {before}")


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
        bottom = page.locator("#bar").bounding_box()["y"]
        first = page.locator(".strip, #title, #group li:nth-child(-n + 7)").evaluate_all(ends)
        assert max(first) <= bottom and page.locator("#train").bounding_box()["y"] < 844
        script = "(all) => all.map((one) => one.getBoundingClientRect().height).filter((y) => y)"
        controls = page.locator("button, select, input")
        assert min(controls.evaluate_all(script)) >= 44
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colour != "rgb(255, 255, 255)") == (scheme == "dark")
        assert len(text_of(page, "main").split()) <= 350


# ---------------------------------------------------------------------- the site

DRAWN_LESSONS = sources.find_sources((0, 13))
CUT_OFF = "[...document.querySelectorAll('pre')].some((x) => x.scrollWidth > x.clientWidth + 1)"
LOADED = """async () => {
    const images = [...document.images].map((image) => image.decode());
    await Promise.all(images);
    const formulas = [...document.querySelectorAll("math")];
    return formulas.every((math) => math.getBoundingClientRect().height > 4); }"""
REDRAWN = "([image, before]) => image.currentSrc && image.currentSrc !== before && image.complete"
# The SVG that an image shows, as text; the address of a file, which a page may not read
CONTENT = """async ({ currentSrc }) =>
    currentSrc.startsWith("blob:") ? (await fetch(currentSrc)).text() : currentSrc"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site with the pictures of lessons 0 and 13 drawn: its folder, and these
    pictures."""
    pytest.importorskip("latex2mathml", reason="pip install -e '.[page]'")
    folder, pictures = tmp_path_factory.mktemp("site"), drawn.draw_lessons(DRAWN_LESSONS)
    return website.write_site(sources.reading_order(), folder, pictures).parent, pictures


def test_pages_fit_the_window_and_show_pictures_and_formulas(browser, site):
    """At the width of a phone and of a desk, with everything unfolded."""
    with opened(browser, (site[0] / "index.html").as_uri()) as page:
        for path in sorted(site[0].rglob("*.html")):
            page.goto(path.as_uri())
            page.evaluate(UNFOLD)
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 850})
                needed = page.evaluate("document.documentElement.scrollWidth")
                assert needed <= width, f"{path.name} at {width}"
            assert page.evaluate(LOADED), path.name
            page.emulate_media(media="print")
            cut_off = page.evaluate(CUT_OFF)
            page.emulate_media(media="screen")
            assert not cut_off or path.name == "group.html", f"{path.name} cuts code off on paper"


def test_the_ladder_shows_any_two_scripts_and_what_a_tag_means(browser, site):
    with opened(browser, (site[0] / "ladder.html").as_uri() + "#grpo-gspo") as page:
        assert page.locator(".changed .line").count() == 28
        assert text_of(page, ".heads") == "grpo.py\ngspo.py"
        page.click("button[data-tag='GSPO: narrow clip']")
        assert page.locator("#entry math").count() > 0
        page.click("#ladder summary:text('in TRL and verl')")
        assert "clip_ratio_low=0.2 → " in text_of(page, "#ladder")
        page.keyboard.press("Escape")
        page.click(".why button[data-tag='GSPO: narrow clip']")  # far above its line
        assert page.evaluate("scrollY") > 500
        page.keyboard.press("Escape")
        page.wait_for_function("scrollY < 100")
        page.locator("select").last.select_option("grpo")
        assert page.locator(".changed").count() == 0 and page.url.endswith("#grpo-grpo")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("source", DRAWN_LESSONS, ids=lambda source: source.stem)
def test_every_slider_changes_its_picture(browser, site, source, width):
    folder, pictures = site
    address = (folder / f"{source.stem}.html").as_uri()
    with opened(browser, address, viewport={"width": width, "height": 850}) as page:
        page.evaluate(
            "for (const folded of document.querySelectorAll('details')) folded.open = true"
        )
        for figure in page.locator("figure[data-picture]").all():
            number = int(figure.get_attribute("data-picture").rpartition("-")[2])
            picture = pictures[source][number - 1]["narrow" if width == 390 else "wide"]
            image, seen = figure.locator("img"), set()
            for slider in figure.locator("input").all():
                before = image.evaluate("(image) => image.currentSrc")
                last = slider.input_value() == slider.get_attribute("max")
                slider.press("ArrowLeft" if last else "ArrowRight")
                page.wait_for_function(REDRAWN, arg=[image.element_handle(), before])
                position = [other.input_value() for other in figure.locator("input").all()]
                content = image.evaluate(CONTENT)
                assert content == drawn.frame(picture, position) and content not in seen
                seen.add(content)
                value = json.loads(slider.get_attribute("data-values"))[int(slider.input_value())]
                mark = slider.get_attribute("id")
                assert figure.locator(f"output[for='{mark}']").inner_text() == value
