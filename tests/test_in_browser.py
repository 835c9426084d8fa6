"""lessons/group.html and the site in a real browser: the page's model against torch, its numbers
against the scripts, a step, lanes, controls, sliders, the widths of a phone and of a desk. Skipped
without playwright and Chromium."""

import json
import random
import re
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pytest
import torch

from lessons import identity
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
    """group.html at its first eight completions."""
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


def call(page, function: str, *arguments):
    """The value of one of the page's functions."""
    return page.evaluate(f"(given) => sigmaLadder.{function}(...given)", arguments)


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
        [...complete(tensors(sigmaLadder.base), prompts, () => numbers.shift())].pop()"""
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
        assert np.allclose(row["entropies"], exact.entropy(), atol=1e-4)
        assert row["truncated"] == (row["ids"][-1] != eos) == (len(ids) == 56)


def test_the_verifier_and_the_problems_are_those_of_the_task(console):
    rng = random.Random(0)
    completions = [
        "".join(rng.choices("0123456789+-=;##", k=rng.randint(0, 9))) for _ in range(500)
    ]
    answers = console.evaluate("(all) => all.map(sigmaLadder.answer)", completions)
    assert answers == [arithmetic.extract_answer(completion) for completion in completions]
    draw = "[...Array(300).keys()].map((i) => sigmaLadder.drawProblem(sigmaLadder.stream(i)))"
    problems, values = console.evaluate(draw), "(all) => all.map(sigmaLadder.value)"
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
        rows = call(console, "pushes", name, verdicts, lengths, ratio)
        assert [row["advantage"] for row in rows] == pytest.approx(A[:, 0].tolist(), abs=1e-6)
        weights = [token["weight"] for row in rows for token in row["tokens"]]
        assert weights == pytest.approx((-logps.grad[mask]).tolist(), abs=1e-6)


# ---------------------------------------------------------------------- in use


def wait_until_written(page) -> None:
    page.wait_for_function("document.querySelector('#lanes').getAttribute('aria-busy') === 'false'")


def wait_until_trained(page) -> None:
    page.wait_for_function("!document.querySelector('#one').disabled", timeout=120_000)
    wait_until_written(page)


def press(page, button: str) -> None:
    page.get_by_role("button", name=button).click()
    wait_until_written(page)


def take_a_step(page) -> None:
    page.locator("#one").click()
    wait_until_trained(page)


def text_of(page, selector: str) -> str:
    return page.locator(selector).first.inner_text()


def texts(page) -> list[str]:
    """The completions of all lanes."""
    tokens = "[...row.querySelectorAll('i')].map((token) => token.textContent)"
    script = f"(all) => all.map((row) => {tokens}.join(''))"
    return page.locator(".completions li").evaluate_all(script)


def shown(page) -> tuple[str, list[int]]:
    """The problem, and a 1 for each completion that counts as right."""
    verdicts = page.locator(".completions li > :first-child").all_inner_texts()
    expression = re.search(r"(\S+) = ", text_of(page, ".count"))[1].replace("−", "-")
    return expression, [int("right" in text) for text in verdicts]


def choose(page, name: str, lane: str = "A") -> None:
    page.get_by_label(f"Algorithm of lane {lane}").select_option(name)
    wait_until_written(page)


def hurry(page) -> None:
    """Smaller steps: two problems of four completions, and eight held-out problems."""
    small = "Object.assign(SETTINGS, { prompts_per_step: 2, group_size: 4, num_minibatches: 2 })"
    page.evaluate(f"() => {{ {small}; sigmaLadder.world.heldOut.length = 8; }}")
    page.locator("#seed").fill("1")
    page.locator("#seed").press("Tab")
    page.wait_for_function("document.querySelectorAll('.completions button').length === 4")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_a_reader_flips_verdicts_and_asks_for_other_problems(page):
    for _ in range(3):
        expression, rewards = shown(page)
        problem = arithmetic.Problem(expression, eval(expression), 0)
        completions = [text.removesuffix("∎") for text in texts(page)]
        assert rewards == [arithmetic.reward(problem, completion) for completion in completions]
        press(page, "Another problem")
    before, rewards = page.locator(".amount").all_inner_texts(), shown(page)[1]
    page.locator(".completions button").first.focus()
    page.keyboard.press("Space")
    assert shown(page)[1] == [1 - rewards[0], *rewards[1:]]
    assert page.locator(".amount").all_inner_texts() != before
    page.keyboard.press("Space")  # the focus is still there
    assert page.locator(".amount").all_inner_texts() == before
    for colour in ("up", "down"):  # all become wrong, then right
        verdict = f"document.querySelector('.completions .{colour}')"
        page.evaluate(f"while ({verdict}) {verdict}.click()")
        assert "the group is silent" in text_of(page, ".lane")
        assert page.locator(".tokens i[class]:not([class=''])").count() == 0
    before, problem = text_of(page, ".count"), page.locator("#problem")
    for wrong, reason in {"8+90": "and 90 is not", "5+3−9": "= −1"}.items():
        problem.fill(wrong)
        page.keyboard.press("Enter")
        assert reason in text_of(page, "#refused") and text_of(page, ".count") == before
    problem.fill(" 8+9−3? ")  # with a typographic minus
    for _ in range(2):  # each time from other random numbers
        written = texts(page)
        press(page, "Write completions")
        assert shown(page)[0] == "8+9-3" and texts(page) != written


@pytest.mark.parametrize("name", ["GRPO", "Dr. GRPO", "DAPO"])
def test_texts_and_colours_show_what_the_script_computes(page, name):
    """The marked code; after each flip: the advantages in the rows, and which tokens go which
    way."""
    choose(page, name)
    new = {"GRPO": "/ sigma", "Dr. GRPO": "no / sigma", "DAPO": "dynamic sampling"}[name]
    assert any(new in line for line in page.locator("#code .plus").all_text_contents())
    for row in range(8):
        page.locator(".completions button").nth(row).click()
        rewards = torch.tensor([shown(page)[1]])
        if rewards.sum() in (0, 8):
            continue
        A = SCRIPTS[name].compute_advantages(rewards=rewards.double())[0]
        amounts = [number(text.split()[-1]) for text in page.locator(".amount").all_inner_texts()]
        assert amounts == pytest.approx(A.tolist(), abs=0.00501)
        for line, R in zip(page.locator(".completions li").all(), rewards[0]):
            other = line.locator(f".tokens i:not([class='{'pos' if R else 'neg'}'])")
            assert other.count() == 0


def test_blocks_and_cards_show_the_pushes_at_the_ratio(page):
    """Every block of every card: crossed out, empty, or of the colour of its push."""
    press(page, "Show all nine")
    rewards, lengths = shown(page)[1], [len(text) for text in texts(page)]
    for position in (0, 24, -60, 180):
        page.locator("#ratio").fill(str(position))
        for card in page.locator("#cards article").all():
            name, ratio = card.get_attribute("data-name"), float(np.exp(position / 100))
            rows = call(page, "pushes", name, rewards, lengths, ratio)
            tokens = [token for row in rows for token in row["tokens"]]
            fills = "(all) => all.map(({ style }) => style.fill.match(/--(up|down)/)?.[1])"
            signs = {"up": 1, "down": -1, None: 0}
            sides = [signs[side] for side in card.locator(".block").evaluate_all(fills)]
            assert sides == [np.sign(token["weight"]) for token in tokens]
            stopped = sum(token["stopped"] for token in tokens)
            assert card.locator(".stopped").count() == stopped
    assert page.locator("#cards article").count() == len(SCRIPTS)


def test_the_dial_opens_after_a_guess_and_shows_the_closed_forms(page):
    assert page.locator("#open").is_hidden()
    press(page, "larger")
    assert page.locator("#open").is_visible()
    for G, k, p in ((8, 1, 12), (32, 20, 50), (3, 1, 90), (4, 3, 30)):
        for name, position in {"G": G, "k": k, "p": p}.items():
            page.locator(f"#dial-{name}").fill(str(position))
        sigma, weight = float(identity.sigma(k, G)), identity.weight
        captions = " ".join(page.locator("#plots figcaption").all_inner_texts())
        pattern = r"(?:is|and|half|always) (?:under )?(\d[.\d]*\d|\d)"
        expected = [sigma, sigma**2, weight("GRPO", p / 100, G), weight("GRPO", 0.5, G)]
        expected += [(G - 1) / G, identity.silent_rate(p / 100, G)]
        numbers = [float(text) for text in re.findall(pattern, captions)]
        assert numbers == pytest.approx([float(x) for x in expected], abs=1e-3)
    page.locator("#dial-G").fill("2")  # k may not stay at 3
    assert text_of(page, "#dial-k-out") == "2"


# ---------------------------------------------------------------------- training


def test_a_step_shows_what_it_did_to_each_token_and_its_address_repeats_it(
    browser, page, policy, base
):
    """Probabilities before and after against torch."""
    take_a_step(page)
    weights = f"() => ({TENSORS})(tensors(sigmaLadder.lanes[0].trainer.policy.weights))"
    state = page.evaluate(weights)
    stepped = load_weights(build.load_policy("base")[0], state)
    before, after = [], []
    for row in page.evaluate("sigmaLadder.lanes[0].last.map(({ prompt, ids }) => [prompt, ids])"):
        start, ids = prompt_ids(base, row[0]), row[1]
        for model, logps in ((policy, before), (stepped, after)):
            table = logits_of(model, start, ids)[:-1].log_softmax(dim=-1)
            logps += table.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    heights = "['--before', '--after'].map((name) => +style.getPropertyValue(name))"
    script = f"(all) => all.map(({{ style }}) => {heights})"
    bars = np.array(page.locator(".completions i").evaluate_all(script))
    assert np.abs(bars - np.exp([before, after]).T).max() < 1e-3
    page.locator("#push").check()
    after_step, link = texts(page), page.locator("#link").evaluate("(link) => link.href")
    assert "step=1" in link and page.evaluate("location.href") == link
    with opened(browser, link) as again:
        trained = "document.querySelector('#time-out').textContent === '1 of 1'"
        again.wait_for_function(trained, timeout=60_000)
        wait_until_trained(again)
        assert texts(again) == after_step and again.evaluate(weights) == state


def test_training_goes_back_in_time_and_on_from_there(page):
    hurry(page)
    step = "document.querySelector('.count').textContent.includes('After step {}:')"
    page.locator("#train").click()
    three = "parseInt(document.querySelector('#time-out').textContent) >= 3"
    page.wait_for_function(three, timeout=60_000)
    page.locator("#train").click()  # Stop
    wait_until_trained(page)
    steps, last = page.evaluate("sigmaLadder.lanes[0].steps"), texts(page)
    page.locator("#time").fill("0")
    page.wait_for_function("!document.querySelector('.count').textContent.includes('step')")
    assert text_of(page, "#time-out") == f"0 of {steps}"
    page.locator("#time").fill(str(steps))
    page.wait_for_function(step.format(steps))
    assert texts(page) == last
    weights = page.evaluate("[...sigmaLadder.lanes[0].trainer.states[2].policy.weights]")
    page.locator("#time").fill("1")
    page.wait_for_function(step.format(1))
    take_a_step(page)
    assert text_of(page, "#time-out") == "2 of 2"
    again = page.evaluate("[...sigmaLadder.lanes[0].trainer.policy.weights]")
    assert again == weights, "the same step as before"
    page.evaluate("sigmaLadder.lanes[0].trainer.config.learning_rate = 1e30")
    take_a_step(page)
    assert "diverged" in text_of(page, "#alarm") and text_of(page, "#time-out") == "2 of 2"


def test_two_lanes_have_the_same_problems_and_show_their_difference(page):
    hurry(page)
    take_a_step(page)
    press(page, "Compare two")
    code = page.locator("#code")
    assert any("/ sigma" in line for line in code.locator(".minus").all_text_contents())
    assert any("no / length" in line for line in code.locator(".plus").all_text_contents())
    choose(page, "GRPO", "B")
    assert "Nothing" in text_of(page, "#code")
    for steps in ("1 of 1", "2 of 2"):  # at first B alone, which then stands where A does
        take_a_step(page)
        assert text_of(page, "#time-out") == steps
    states = "sigmaLadder.lanes.map((lane) => [lane.metrics, [...lane.trainer.policy.weights]])"
    a, b = page.evaluate(states)
    assert a == b and [row["step"] for row in a[0]] == [1, 2]
    page.evaluate(UNFOLD)
    settings = {  # the names that the page shows, and another choice than the script's
        "advantage": "R − mean",
        "divided by": "the number of tokens",
        "clip": "none",
        "weight of the KL": "0",
        "epochs": "2",
        "mistake of the clinic": "the same prompts at every step",
    }
    for label, choice in settings.items():
        select = page.locator(".lane").nth(1).locator(".settings").get_by_label(label)
        own = select.input_value()
        select.select_option(choice)
        wait_until_written(page)
        a, b = page.evaluate(
            """sigmaLadder.lanes.map(({ algorithm, trainer: { config } }) =>
            [algorithm.advantages([1, 0, 0, 0], [4, 4, 4, 4])[0], JSON.stringify(config)])"""
        )
        assert a != b and code.locator(".minus").count() and code.locator(".plus").count()
        select.select_option(own)
        wait_until_written(page)
    assert "Nothing" in code.inner_text()
    press(page, "Remove this lane")
    assert page.locator(".lane").count() == 1 and text_of(page, "#time-out") == "2 of 2"


def test_mistakes_of_the_clinic_are_made(console):
    """Two steps of the page's training with each: the patches' effects, and no other."""
    made = console.evaluate("""async () => {
        const found = {}, weights = sigmaLadder.base;
        for (const mistake of ["", "same_prompts", "verifier_lax", "stale_sampler", "kl_sign"]) {
            const algorithm = { ...ALGORITHMS.GRPO, mistake, prompts_per_step: 2 }, prompts = [];
            const trainer = new Trainer({ weights, pool: new Pool(), algorithm });
            for (let step = 0; step < 2; step++)
                prompts.push((await trainer.step()).drawn.flat().map((row) => row.prompt));
            const base = trainer.sampler(trainer.policy) === weights;
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
    patches = console.evaluate("JSON.parse(document.querySelector('#patches').textContent)")
    assert {"", *patches} == set(made)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only_and_has_room_for_fingers(browser, scheme):
    with opened(browser, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        for button in ("larger", "Show all nine", "Compare two"):
            press(page, button)
        page.evaluate(UNFOLD)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        script = "(all) => all.map((one) => one.getBoundingClientRect().height).filter((y) => y)"
        controls = page.locator("button, select, input:not([type=radio]), summary")
        assert min(controls.evaluate_all(script)) >= 44
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colour != "rgb(255, 255, 255)") == (scheme == "dark")


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
        assert page.locator(".changed .line").count() > 30
        assert text_of(page, ".heads") == "grpo.py\ngspo.py"
        page.click("button[data-tag='GSPO: narrow clip']")
        assert page.locator("#entry math").count() == 1
        page.click("#entry summary")
        assert "clip_ratio_low=0.009" in text_of(page, "#entry")
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
    pictures = pictures[source]["narrow" if width == 390 else "wide"]
    address = (folder / f"{source.stem}.html").as_uri()
    with opened(browser, address, viewport={"width": width, "height": 850}) as page:
        page.evaluate(
            "for (const folded of document.querySelectorAll('details')) folded.open = true"
        )
        for figure in page.locator("figure[data-picture]").all():
            picture = pictures[int(figure.get_attribute("data-picture"))]
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
