// The page itself: its contents, and what its controls do.
// build.py joins the modules into two scripts, what a worker runs and the rest, so all of their top-level names are different.

import { ALGORITHMS, LAMBDA, OVERLONG, coefficients, divisorOf, pushes } from "./algorithms.js";
import { answer, drawProblem, encode, stream, textOf, value } from "./arithmetic.js";
import { fidelity, sigma, silent, updateLength, weight, weightDrGRPO } from "./closed.js";
import { EOS, LONGEST, TOKENS, readPolicies } from "./model.js";
import { bars, blocks, element, plot, shade, signed } from "./pictures.js";
import { complete } from "./rollout.js";

const $ = (id) => document.getElementById(id);
const json = (id) => JSON.parse($(id).textContent);
const POLICIES = json("policy-names"), CODE = json("code-lines");
const G = 8, TOKENS_PER_FRAME = 2; // of every completion
const policies = readPolicies($("weights").textContent.trim(), POLICIES);
const group = { expression: "", policy: "", rows: [], verdicts: [], rewards: [] }; // rewards: the verdicts, as flipped by the reader
const chosen = { algorithm: "GRPO", ratio: 1 };
const dial = { G: 8, k: 1, p: 0.12, v: 14, contrast: 2.5 };
let seed = 7, writing = 0;
const short = (x) => String(Number(x.toFixed(3)));
const nextFrame = () => new Promise(requestAnimationFrame);

// ---------------------------------------------------------------------- 1. eight completions

const isWritten = () => group.rewards.length === G;
const lengthsOfGroup = () => group.rows.map((ids) => ids.length);
const rightOnes = () => group.rewards.reduce((a, b) => a + b, 0);

// Write a group of completions of a problem. -> whether it was finished; a newer request cancels it
async function write(expression) {
  const right = value(expression), run = right === null ? writing : ++writing;
  $("refused").textContent = right !== null ? "" : "Not a problem of this task: type one to four + or −, such as 29+46-36, " +
    "with numbers from 1 to 50 and every running total from 0 to 99.";
  if (right === null) return false;
  Object.assign(group, { expression, policy: $("policy").value, rows: [], rewards: [] });
  $("group").setAttribute("aria-busy", "true");
  let shown = 0;
  for (const rows of complete(policies[group.policy], Array(G).fill(expression + "?"), stream(seed++))) {
    group.rows = rows.map((row) => row.ids);
    if (++shown % TOKENS_PER_FRAME || matchMedia("(prefers-reduced-motion: reduce)").matches) continue;
    showCompletions();
    await nextFrame();
    if (run !== writing) return false;
  }
  group.verdicts = group.rows.map((ids) => Number(answer(textOf(ids)) === right));
  group.rewards = [...group.verdicts];
  $("group").setAttribute("aria-busy", "false");
  showGroup();
  return true;
}

function showCompletions() {
  const written = isWritten(), rows = written && pushes(chosen.algorithm, group.rewards, lengthsOfGroup());
  const full = written && fullColour(chosen.algorithm), focused = document.activeElement?.dataset?.row;
  $("completions").replaceChildren(...group.rows.map((ids, i) => {
    const letters = ids.map((id) => (id === EOS ? "∎" : TOKENS[id]));
    if (!written) return element("li", {}, element("span"), element("span"), element("span", { class: "tokens" }, ...letters.map((letter) => element("i", {}, letter))));
    const right = group.rewards[i], turned = right !== group.verdicts[i], A = signed(rows[i].advantage);
    const verdict = element("button", { type: "button", class: right ? "up" : "down", "data-row": i, onclick: () => turn(i),
      "aria-label": `completion ${i + 1}: ${right ? "right" : "wrong"}${turned ? ", flipped by you" : ""}; flip` }, `${right ? "✓ right" : "✗ wrong"}${turned ? " *" : ""}`);
    const tokens = rows[i].tokens.map(({ weight: push }, t) =>
      element("i", { class: push > 0 ? "pos" : push < 0 ? "neg" : "", style: `background: ${shade(push, full)}` }, letters[t]));
    return element("li", {}, verdict, element("span", { class: "amount" }, `A = ${A}`),
      element("span", { class: "tokens", role: "img", "aria-label": `${textOf(ids)}; advantage ${A}` }, ...tokens));
  }));
  if (focused) document.querySelector(`[data-row="${focused}"]`)?.focus();
}

function turn(i) {
  group.rewards[i] = 1 - group.rewards[i];
  showGroup();
}

function showGroup() {
  const k = rightOnes(), turned = group.rewards.some((R, i) => R !== group.verdicts[i]) ? " (* flipped by you)" : "";
  showCompletions();
  $("count").textContent = `${group.expression} = ${value(group.expression)}; ${group.policy}: k = ${k} of G = ${G} right${turned}, ` +
    `mean reward ${short(k / G)}, σ = √(${k}·${G - k})/${G} = ${short(sigma(k, G))}`;
  showTold();
  showCards();
}

// The strongest push that a completion of average length can get from an algorithm, over all k: full colour.
function fullColour(name) {
  const lengths = lengthsOfGroup(), same = lengths.map(() => Math.round(lengths.reduce((a, b) => a + b, 0) / G));
  const strongest = (k) => Math.max(...pushes(name, same.map((_, i) => Number(i < k)), same).flatMap((row) => row.tokens.map((token) => Math.abs(token.weight))));
  return Math.max(...Array.from({ length: G - 1 }, (_, k) => strongest(k + 1)));
}

// "+1.73 for right completions": every value that an algorithm gives to right (1) or wrong (0) completions.
function advantagesOf(name, reward) {
  const given = ALGORITHMS[name].advantages(group.rewards, lengthsOfGroup()).filter((_, i) => group.rewards[i] === reward);
  return [...new Set(given.map((A) => signed(A)))].join(" or ");
}

function showTold() {
  const name = chosen.algorithm, k = rightOnes(), s = short(sigma(k, G)), average = short(k / G), isSilent = k === 0 || k === G;
  const values = `${advantagesOf(name, 1)} for right completions and ${advantagesOf(name, 0)} for wrong ones`;
  const told = {
    GRPO: `GRPO subtracts the group's mean reward and divides by its standard deviation: A = (R − ${average}) / ${s}, ${values}. It also divides by ` +
      `length: a token gets A / (8 · length of its completion), so that tokens of long completions are pushed less. ` +
      `The sum of A / 8 over the right completions is the coefficient of the update, +σ = +${s}; the wrong ones have −σ.`,
    "Dr. GRPO": `Dr. GRPO leaves out both divisions, which its authors call biases: ÷ σ gives lopsided groups too much weight, ÷ length lets long wrong completions ` +
      `off lightly. A = R − ${average}, ${values}; a token gets A / (8 · ${LONGEST}), however long its completion is (${LONGEST}: the length limit). ` +
      `The coefficient is +σ² = +${short((k * (G - k)) / G ** 2)}: against GRPO, groups with few right or few wrong ones lose more than even ones.`,
    DAPO: `DAPO divides by σ as GRPO does: A is ${values}. (Its rewards are 1 and −1, which changes no A, less a penalty for overlong completions.) A token gets A / ` +
      `${lengthsOfGroup().reduce((a, b) => a + b, 0)} (all tokens counted), so that every token has the same weight and long completions are not diluted. To keep the policy exploring, the clip lets a ` +
      `token's probability rise by 28 % before it stops the push (GRPO: 20 %); groups that are all right or all wrong, which teach nothing, are replaced.`,
  }[name];
  const nothing = `All ${G} are ${k ? "right" : "wrong"}: σ = 0 and every advantage is 0. The group is silent: without the KL term no token is pushed. ` +
    (name === "DAPO" ? "DAPO skips it and draws other problems, up to ten batches, until it has enough mixed groups." : "");
  const spoken = coefficients(name, group.rewards, lengthsOfGroup());
  $("told").replaceChildren(element("p", {}, isSilent ? nothing : told),
    isSilent ? "" : bars(spoken, `The coefficient is ${signed(spoken.right, 3)} for the right completions and ${signed(spoken.wrong, 3)} for the wrong ones.`));
  if (isSilent && name === "DAPO") $("told").append(element("button", { type: "button", onclick: drawUntilMixed }, "Draw problems until a group is mixed"));
  $("code").replaceChildren(...CODE[name].map(([mark, line]) =>
    element("span", { class: { "+": "plus", "-": "minus", "#": "file" }[mark] ?? "" }, `${name === "GRPO" || mark === "#" ? " " : mark} ${line}`)));
}

async function drawUntilMixed({ target }) { // as DAPO does with a silent group
  target.disabled = true;
  for (let drawn = 1; drawn <= 40; drawn++) {
    $("problem").value = drawProblem(stream(seed * 7919));
    if (!(await write($("problem").value))) return;
    const mixed = rightOnes() > 0 && rightOnes() < G;
    if (mixed || drawn === 40) {
      $("told").prepend(element("p", { tabindex: -1 }, `${drawn} more problem${drawn > 1 ? "s" : ""} drawn, ${drawn * G} completions${mixed ? "." : ", and none was mixed."}`));
      return $("told").firstChild.focus();
    }
    await nextFrame();
  }
}

// ---------------------------------------------------------------------- 2. nine algorithms

// Each algorithm in a few words, and its rule for A with the group's numbers: a = mean reward, s = σ, k right completions.
const WORDS = {
  REINFORCE: ["the reward is the advantage; no baseline", () => "A = R"],
  PPO: ["a critic's forecast as baseline; here one constant", (a) => `A = ${LAMBDA}^(tokens left) · (R − ${a}), then standardised`],
  GRPO: ["the group's mean as baseline, ÷ σ, ÷ length", (a, s) => `A = (R − ${a}) / ${s}`],
  "Dr. GRPO": ["no ÷ σ, no ÷ length", (a) => `A = R − ${a}`],
  DAPO: ["÷ σ, all tokens alike, skips 0 and 8 of 8 right", (a, s) => `A = (R − ${a}) / ${s}${overlong()}`],
  RLOO: ["baseline: the mean of the others", (a, s, k) => `A = R − (${k} − R) / ${G - 1}`],
  MaxRL: ["÷ the mean, so that hard problems count more", (a) => `A = (R − ${a}) / ${a}`],
  GSPO: ["one ratio per completion, a narrow clip", (a, s) => `A = (R − ${a}) / ${s}`],
  CISPO: ["DAPO with a capped ratio that stops no token", (a, s) => `A = (R − ${a}) / ${s}${overlong()}`],
};

const overlong = () => (lengthsOfGroup().some((length) => length > LONGEST - OVERLONG) ? ", less if overlong" : "");

function showCards() {
  $("ratio-out").textContent = $("ratio-too").textContent = chosen.ratio.toFixed(3);
  $("ratio").setAttribute("aria-valuetext", chosen.ratio.toFixed(3));
  $("cards").replaceChildren(...Object.keys(ALGORITHMS).map(card));
}

function card(name) {
  const { clip, cap, divisor } = ALGORITHMS[name], [idea, rule] = WORDS[name], k = rightOnes(), lengths = lengthsOfGroup();
  const rows = pushes(name, group.rewards, lengths, chosen.ratio), tokens = rows.flatMap((row) => row.tokens);
  const stopped = tokens.filter((token) => token.stopped).length, none = tokens.every((token) => !token.weight && !token.stopped);
  const sums = coefficients(name, group.rewards, lengths);
  const factor = clip ? "ratio · " : cap ? `min(ratio, ${cap}) · ` : "";
  const under = divisor === "length" ? `(${G} · length)` : divisor === "limit" ? `(${G} · ${LONGEST})` : divisorOf(ALGORITHMS[name], lengths, 0);
  const silence = name === "PPO" ? "the critic predicted every reward: no push" : ["DAPO", "CISPO"].includes(name) ? "silent: skipped, another problem is drawn" : "silent: no push";
  const values = [[1, "right"], [0, "wrong"]].map(([reward, what]) => [advantagesOf(name, reward), what]).filter(([A]) => A);
  const pushed = (reward) => signed(rows.filter((_, i) => group.rewards[i] === reward).flatMap((row) => row.tokens).reduce((sum, token) => sum + token.weight, 0), 3);
  const advantage = sums ? `: ${values.map(([A, what]) => `${what} ${A}`).join(", ")}` : "";
  const spoken = rows.map((row, i) => `completion ${i + 1}, ${group.rewards[i] ? "right" : "wrong"}: ` +
    (row.tokens[0].stopped ? "stopped" : `${signed(row.tokens[0].weight, 4)} at its first token`)).join("; ");
  const lines = none ? [] : [rule(short(k / G), short(sigma(k, G)), k) + advantage, sums ? `coefficient ${signed(sums.right, 3)} (wrong ${signed(sums.wrong, 3)})` : "no coefficient: every token has its own A",
    `a token gets ${factor}A / ${under}`, `all tokens: right ${pushed(1)}, wrong ${pushed(0)}`];
  return element("article", { "data-name": name }, element("h3", {}, name), element("p", { class: "idea" }, idea),
    blocks(rows, fullColour(name), `${name}. ${spoken}`), none ? element("p", { class: "silent" }, silence) : "", ...lines.map((line) => element("p", {}, line)),
    element("p", { class: "idea" }, clip ? `clip [${clip.join(", ")}]: ${stopped} of ${tokens.length} tokens stopped` : cap ? "nothing is stopped" : "one update per batch: no ratio"));
}

// ---------------------------------------------------------------------- 3. a guess, 4. the dial

const GUESSES = ["larger", "about two thirds", "about a quarter"];

function guess(name) {
  for (const button of $("guess").children) button.setAttribute("aria-pressed", button.textContent === name);
  $("verdict").textContent = `${name === GUESSES[1] ? "Yes: about" : "About"} two thirds. √7 / 8 = ${short(sigma(1, 8))} = σ, against ${sigma(4, 8)}: ` +
    `the advantage is large, but only one completion has it. Under Dr. GRPO it is σ², ${short(sigma(1, 8) ** 2)} against ${sigma(4, 8) ** 2}, under a half; ` +
    "dividing by σ lifts that to two thirds, never above the even group.";
  $("locked").hidden = true;
  $("open").hidden = false;
}

const SLIDERS = { // [label, lowest, highest and first position, the value at a position]
  G: ["G, completions", 2, 32, 8, (x) => x], k: ["k, right ones", 0, 8, 1, (x) => x], p: ["p, chance of a right one", 2, 98, 12, (x) => x / 100],
  v: ["noise of wrong / right, v₋ / v₊", -20, 50, 23, (x) => decades(x / 20)], contrast: ["contrast² / noise, |Δm|² / v₊", -20, 20, 8, (x) => decades(x / 20)],
};
const decades = (x) => Number((10 ** x).toPrecision(2));

function turnDial(name, position) {
  dial[name] = SLIDERS[name][4](position);
  $("dial-k").max = dial.G;
  dial.k = Number($("dial-k").value); // the browser has limited it to G
  showDial();
}

function showDial() {
  const { k, G, p, v, contrast } = dial, s = sigma(k, G), ks = Array.from({ length: G + 1 }, (_, i) => i);
  const isMixed = (i) => i > 0 && i < G, long = (i) => (isMixed(i) ? updateLength(i, G, contrast, 1, v) : 0), half = Math.floor(G / 2);
  const scale = sigma(half, G) / long(half), ps = Array.from({ length: 97 }, (_, i) => (i + 2) / 100), share = (x) => (x < 0.001 ? "under 0.001" : short(x));
  for (const name in SLIDERS) {
    $(`dial-${name}-out`).textContent = short(dial[name]);
    $("dial-" + name).setAttribute("aria-valuetext", short(dial[name]));
  }
  const every = Math.ceil(G / 8), chance = { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], name: "p, probability of a right completion" };
  $("plots").replaceChildren(
    plot({ x: { low: 0, high: G, ticks: ks.filter((i) => i % every === 0), name: "k, right completions of G" }, y: { low: 0, high: 0.8, ticks: [0, 0.2, 0.4, 0.6, 0.8] },
      lines: [
        { points: ks.map((i) => [i, sigma(i, G)]), colour: "var(--up)", dots: true, name: "σ: GRPO", at: half },
        { points: ks.map((i) => [i, sigma(i, G) ** 2]), colour: "var(--orange)", ink: "var(--orange-ink)", dots: true, name: "σ²: Dr. GRPO", at: half, dy: 20 },
        { points: ks.filter(isMixed).map((i) => [i, long(i) * scale]), colour: "var(--soft)", dash: "5 4" },
      ], marks: [{ point: [k, s], colour: "var(--up)" }, { point: [k, s * s], colour: "var(--orange)" }],
      caption: "The coefficient of one group's update. Dashed: the (root mean square) length of GRPO's update, scaled to meet σ in the middle.",
      spoken: `Coefficient over k at G = ${G}: at k = ${k} GRPO's is ${short(s)} and Dr. GRPO's ${short(s * s)}; the update is ${short(long(k) / long(half))} times as long as at k = ${half}.` }),
    plot({ x: chance, y: { low: 0, high: 6, ticks: [0, 2, 4, 6] },
      lines: [
        { points: ps.map((x) => [x, 1 / Math.sqrt(x * (1 - x))]), colour: "var(--soft)", dash: "5 4" },
        { points: ps.map((x) => [x, weight(x, G)]), colour: "var(--up)", name: "GRPO", at: 48 },
        { points: ps.map((x) => [x, weightDrGRPO(G)]), colour: "var(--orange)", ink: "var(--orange-ink)", name: "Dr. GRPO", at: 48, dy: 16 },
      ], marks: [{ point: [p, weight(p, G)], colour: "var(--up)" }],
      caption: "w(p), the weight of ∇p in the mean update of a problem, for scores summed over tokens. Dashed: GRPO as G grows.",
      spoken: `Weight over p at G = ${G}: at p = ${short(p)} GRPO's is ${short(weight(p, G))}, at one half ${short(weight(0.5, G))}; Dr. GRPO's is ${short(weightDrGRPO(G))} everywhere.` }),
    plot({ x: chance, y: { low: 0, high: 1, ticks: [0, 0.5, 1] },
      lines: [
        { points: ps.map((x) => [x, silent(x, G)]), colour: "var(--green)", name: "silent", at: 12, anchor: "start" },
        { points: ps.map((x) => [x, fidelity(x, G)]), colour: "var(--up)", dash: "5 4", name: "fidelity", at: 70, dy: 18 },
      ], marks: [{ point: [p, silent(p, G)], colour: "var(--green)" }, { point: [p, fidelity(p, G)], colour: "var(--up)" }],
      caption: "The share of groups that are silent; the mean σ as a share of its limit for large groups, √(pq) (fidelity).",
      spoken: `At p = ${short(p)} and G = ${G}, ${share(silent(p, G))} of the groups are silent and the fidelity is ${short(fidelity(p, G))}.` }));
  const numbers = {
    [`σ and σ² at k = ${k}`]: `${short(s)} for GRPO, ${short(s * s)} for Dr. GRPO`,
    "length of GRPO's update": isMixed(k) ? `${short(long(k) / long(half))} times that at k = ${half}; ${short(long(k))} √v₊` : "0: the group is silent",
    [`w(p) at p = ${short(p)}`]: `${short(weight(p, G))} for GRPO (at p = ½ ${short(weight(0.5, G))}), ${short(weightDrGRPO(G))} for Dr. GRPO`,
    "silent, p^G + q^G": `${share(silent(p, G))} of the groups`, "fidelity, E[σ] / √(pq)": short(fidelity(p, G)),
  };
  $("numbers").replaceChildren(...Object.entries(numbers).flatMap(([name, what]) => [element("dt", {}, name), element("dd", {}, what)]));
}

// ---------------------------------------------------------------------- at the start

const typed = () => $("problem").value.replace(/[\s?]/g, "");
$("policy").append(...POLICIES.map((name) => element("option", { value: name }, name)));
$("switch").append(...["GRPO", "Dr. GRPO", "DAPO"].map((name) => element("label", {}, element("input", { type: "radio", name: "algorithm", value: name,
  checked: name === chosen.algorithm, autocomplete: "off", onchange: () => { chosen.algorithm = name; if (isWritten()) showGroup(); } }), name)));
$("guess").append(...GUESSES.map((name) => element("button", { type: "button", "aria-pressed": "false", onclick: () => guess(name) }, name)));
$("sliders").append(...Object.entries(SLIDERS).map(([name, [what, min, max, start]]) => element("div", { class: "slider" },
  element("label", { for: "dial-" + name }, what), element("input", { type: "range", id: "dial-" + name, min, max, value: start, autocomplete: "off",
    oninput: (event) => turnDial(name, Number(event.target.value)) }), element("span", { id: `dial-${name}-out` }))));
$("ask").addEventListener("submit", (event) => { event.preventDefault(); write(typed()); });
$("draw").addEventListener("click", () => write(($("problem").value = drawProblem(stream(seed * 7919)))));
$("policy").addEventListener("change", () => write(($("problem").value = group.expression)));
$("ratio").addEventListener("input", (event) => { chosen.ratio = Math.exp(event.target.value / 100); if (isWritten()) showCards(); });
showDial();
write(typed());

// For the console and the tests.
globalThis.sigmaLadder = { ALGORITHMS, policies, encode, complete, stream, answer, value, drawProblem, pushes, coefficients, fullColour,
  closed: { sigma, silent, fidelity, weight, weightDrGRPO, updateLength } };
