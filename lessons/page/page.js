// The page itself: what stands in it, and what happens when something is pressed or moved.

import { ALGORITHMS, CLIPS, LAMBDA, MAX_RATIO, advantages, coefficients, divisor, pushes } from "./algorithms.js";
import { fidelity, length, sigma, silent, weight, weightDrGRPO } from "./closed.js";
import { bars, element, plot, shade, signed, strips } from "./draw.js";
import { EOS, LONGEST, Reader, TOKENS, answer, complete, draw, encode, pick, readPolicies, softmax, stream, text, value } from "./model.js";

const $ = (id) => document.getElementById(id);
const json = (id) => JSON.parse($(id).textContent);
const POLICIES = json("policy-names"), CODE = json("code-lines"), G = 8, A_STEP = 2; // A_STEP: tokens shown a frame
const policies = readPolicies($("weights").textContent.trim(), POLICIES);
const state = { expression: "", rows: [], rewards: [], verdicts: [], algorithm: "GRPO", ratio: 1, seed: 7, run: 0 };
const dial = { k: 1, G: 8, p: 0.125, v: 1, contrast: 0.1 };
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const short = (x) => String(Number(x.toFixed(3)));

// ---------------------------------------------------------------------- 1. eight completions

async function write() {
  const expression = $("problem").value.replace(/[\s?]/g, ""), run = ++state.run;
  const problem = value(expression) !== null;
  $("refused").textContent = problem ? "" : "Not a problem of this task: type one to four + or −, such as 29+46-36, " +
    "with numbers from 1 to 50 and every running total from 0 to 99.";
  if (!problem) return;
  state.expression = expression;
  state.rows = state.rewards = [];
  let shown = 0;
  for (const rows of complete(policies[$("policy").value], expression + "?", G, stream(state.seed++))) {
    state.rows = rows;
    if (still || ++shown % A_STEP) continue;
    showCompletions();
    await new Promise(requestAnimationFrame);
    if (run !== state.run) return; // something newer was asked for
  }
  state.verdicts = state.rows.map((ids) => Number(answer(text(ids)) === value(expression)));
  state.rewards = [...state.verdicts];
  showGroup();
}

const finished = () => state.rewards.length === G;
const lengths = () => state.rows.map((ids) => ids.length);

function showCompletions() {
  const pushed = finished() ? pushes(state.algorithm, state.rewards, lengths()) : null;
  const full = pushed && fullColour(state.algorithm);
  const focused = document.activeElement?.dataset?.row;
  $("completions").replaceChildren(...state.rows.map((ids, i) => {
    const row = pushed?.[i], right = state.rewards[i], turned = row && right !== state.verdicts[i] ? " *" : "";
    const verdict = row ? element("button", { type: "button", class: right ? "up" : "down", "data-row": i, onclick: () => turn(i),
      "aria-label": `completion ${i + 1}: ${right ? "right" : "wrong"}; press to turn it around` }, (right ? "✓ right" : "✗ wrong") + turned) : "";
    const tokens = ids.map((id, t) => element("i", row ? { class: sign(row.tokens[t].weight), style: `background: ${shade(row.tokens[t].weight, full)}` } : {},
      id === EOS ? "∎" : TOKENS[id]));
    const spoken = text(ids) + (row ? `; advantage ${signed(row.advantage)}` : "");
    return element("li", {}, element("span", {}, verdict), element("span", { class: "amount" }, row ? `A = ${signed(row.advantage)}` : ""),
      element("span", { class: "tokens", role: "img", "aria-label": spoken }, ...tokens));
  }));
  if (focused) document.querySelector(`[data-row="${focused}"]`)?.focus();
}

const sign = (weight) => (weight > 0 ? "pos" : weight < 0 ? "neg" : "");

function turn(i) {
  state.rewards[i] = 1 - state.rewards[i];
  showGroup();
}

function showGroup() {
  showCompletions();
  const k = state.rewards.reduce((a, b) => a + b, 0), s = sigma(k, G);
  const turned = state.rewards.some((R, i) => R !== state.verdicts[i]) ? " (* turned around by you)" : "";
  $("count").textContent = `${state.expression} = ${value(state.expression)}. k = ${k} of G = ${G} right${turned}: ` +
    `mean ${short(k / G)}, σ = √(${k}·${G - k})/${G} = ${short(s)}`;
  showTold(k, s);
  showCards();
}

// The strongest push that a completion of average length can get from an algorithm, over all k: full colour.
function fullColour(algorithm) {
  const average = Math.round(lengths().reduce((a, b) => a + b, 0) / G), same = Array(G).fill(average);
  const most = (k) => pushes(algorithm, same.map((_, i) => Number(i < k)), same).flatMap((row) => row.tokens.map(({ weight }) => Math.abs(weight)));
  return Math.max(...Array.from({ length: G - 1 }, (_, k) => Math.max(...most(k + 1))));
}

function showTold(k, s) {
  const A = advantages(state.algorithm, state.rewards, lengths()), quiet = k === 0 || k === G;
  const of = (right) => signed(A[state.rewards.indexOf(right)] ?? 0);
  const both = quiet ? "" : `${of(1)} for right completions and ${of(0)} for wrong ones`;
  const told = {
    GRPO: `GRPO subtracts the group's mean reward and divides by its standard deviation: A = (R − ${short(k / G)}) / ${short(s)}, ${both}. ` +
      `It divides once more, by each completion's own length: a token of a long completion is pushed less. ` +
      `In all, the right ones get +σ = +${short(s)} and the wrong ones −σ.`,
    "Dr. GRPO": `Dr. GRPO leaves out both divisions: A = R − ${short(k / G)}, ${both}, and every token of a completion gets all of it, however long it is. ` +
      `In all, the right ones get +σ² = +${short((k * (G - k)) / G ** 2)} and the wrong ones −σ²: against GRPO a group with few right or few wrong completions counts for less.`,
    DAPO: `DAPO divides by σ as GRPO does: ${both}. It divides by the number of all tokens (${lengths().reduce((a, b) => a + b, 0)}), so that ` +
      `every token weighs alike; its clip stops rises later than falls; and it trains on no group without both kinds.`,
  }[state.algorithm];
  const nothing = `All ${G} are ${k ? "right" : "wrong"}: σ = 0. ` + (state.algorithm === "DAPO"
    ? "DAPO throws this group away and draws another problem, until there are enough groups with both kinds. "
    : `Every reward equals the mean, so no token is pushed: the group is silent, and nothing is learnt from it.`);
  const { right, wrong } = coefficients(state.algorithm, state.rewards, lengths());
  $("told").replaceChildren(element("p", {}, quiet ? nothing : told), bars(right, wrong, `in all, the right completions get ${signed(right, 3)}, the wrong ones ${signed(wrong, 3)}`));
  if (quiet && state.algorithm === "DAPO") $("told").append(element("button", { type: "button", onclick: refill }, "Draw problems until a group is mixed"));
  $("code").replaceChildren(...CODE[state.algorithm].map(([mark, line]) =>
    element("span", { class: { "+": "plus", "-": "minus" }[mark] ?? "" }, `${state.algorithm === "GRPO" ? " " : mark} ${line}`)));
}

async function refill() { // what DAPO does with a silent group
  for (let drawn = 1; drawn <= 40; drawn++) {
    $("problem").value = draw(stream(state.seed * 7919));
    await write();
    const k = state.rewards.reduce((a, b) => a + b, 0);
    if (k > 0 && k < G) return $("told").prepend(element("p", {}, `${drawn} more problem${drawn > 1 ? "s" : ""} drawn, ${drawn * G} completions.`));
  }
}

// ---------------------------------------------------------------------- 2. nine algorithms

const IDEAS = {
  REINFORCE: "the reward is the advantage; no baseline", PPO: "a critic's forecast as baseline, for every token",
  GRPO: "the group's mean as baseline, ÷ σ, ÷ length", "Dr. GRPO": "no ÷ σ, no ÷ length",
  DAPO: "÷ σ, every token alike, no silent groups", RLOO: "baseline: the mean of the others",
  MaxRL: "÷ the mean: hard problems count more", GSPO: "one ratio a completion, a narrow clip", CISPO: "a capped ratio; no token is stopped",
};

function showCards() {
  const k = state.rewards.reduce((a, b) => a + b, 0), average = short(k / G), L = lengths();
  $("cards").replaceChildren(...ALGORITHMS.map((name) => {
    const rows = pushes(name, state.rewards, L, state.ratio), A = advantages(name, state.rewards, L);
    const of = (right) => {
      const given = [...new Set(A?.filter((_, i) => state.rewards[i] === right).map((a) => signed(a)))];
      return given.length && `${right ? "right" : "wrong"} ${given.join(" or ")}`; // DAPO punishes overlong ones
    };
    const rule = {
      REINFORCE: "A = R", PPO: `A = ${LAMBDA}^(tokens to go) · (R − ${average}), whitened`, "Dr. GRPO": `A = R − ${average}`,
      RLOO: `A = R − (${k} − R)/${G - 1}`, MaxRL: `A = (R − ${average}) / ${average}`,
    }[name] ?? `A = (R − ${average}) / ${short(sigma(k, G))}`;
    const quiet = rows.every((row) => row.tokens.every(({ weight, stopped }) => !weight && !stopped));
    const stopped = rows.flatMap((row) => row.tokens).filter((token) => token.stopped).length, all = L.reduce((a, b) => a + b, 0);
    const over = { GRPO: `${G} · length`, GSPO: `${G} · length`, PPO: all, DAPO: all, CISPO: all }[name] ?? `${G} · ${LONGEST}`;
    const sums = A && coefficients(name, state.rewards, L);
    const clip = CLIPS[name] ? `clip [${short(1 - CLIPS[name][0])}, ${short(1 + CLIPS[name][1])}]: ${stopped} of ${all} tokens stopped`
      : name === "CISPO" ? `ratio counts up to ${MAX_RATIO}; nothing is stopped` : "no ratio: one update a batch";
    const kind = name === "DAPO" || name === "CISPO" ? "silent: thrown away, another problem is drawn" : "silent: nothing is learnt";
    const spoken = rows.map((row, i) => `completion ${i + 1}, ${state.rewards[i] ? "right" : "wrong"}: ${signed(row.tokens[0].weight, 4)} at its first token`).join("; ");
    return element("article", { "data-name": name }, element("h3", {}, name), element("p", { class: "idea" }, IDEAS[name]),
      strips(rows, fullColour(name), `${name}. ${spoken}`),
      element("p", {}, quiet ? element("span", { class: "silent" }, kind) : `${rule}${A ? ": " + [of(1), of(0)].filter(Boolean).join(", ") : ""}; a token gets A / (${over})`),
      element("p", {}, sums && !quiet ? `right in all ${signed(sums.right, 3)}, wrong ${signed(sums.wrong, 3)}` : name === "PPO" ? "one advantage a token: no single coefficient" : ""),
      element("p", { class: "idea" }, clip));
  }));
  $("ratio-out").textContent = state.ratio.toFixed(2);
}

// ---------------------------------------------------------------------- 3. a guess, 4. the dial

const GUESSES = ["larger", "about two thirds", "about a quarter"];

function guess(chosen) {
  for (const button of $("guess").children) button.setAttribute("aria-pressed", button.textContent === chosen);
  $("verdict").textContent = (chosen === GUESSES[1] ? "Yes: about two thirds. " : "About two thirds. ") +
    `The advantage is ${short(Math.sqrt(7))}, but it is one completion of eight: ${short(Math.sqrt(7))} / 8 = 0.331 = σ, against 0.5. ` +
    "Dividing by σ raises the single advantage and not the group. Dr. GRPO's coefficient is σ²: 0.109 against 0.25, less than a half.";
  $("locked").hidden = true;
  $("open").hidden = false;
}

const SLIDERS = { // name: [what it is, lowest, highest, step, from position to value]
  G: ["G, completions", 2, 32, 1, (x) => x], k: ["k, right ones", 0, 8, 1, (x) => x], p: ["p, chance of right", 0.02, 0.98, 0.01, (x) => x],
  v: ["v₋ / v₊", -10, 10, 1, (x) => 10 ** (x / 10)], contrast: ["|Δm|² / v₊", -20, 10, 1, (x) => 10 ** (x / 10)],
};

function turnDial(name, position) {
  dial[name] = SLIDERS[name][4](position);
  $("dial-k").max = dial.G;
  dial.k = Number($("dial-k").value); // the browser has held it to G
  showDial();
}

function showDial() {
  const { k, G, p, v, contrast } = dial, s = sigma(k, G), ks = Array.from({ length: G + 1 }, (_, i) => i);
  const mixed = (i) => i > 0 && i < G, long = (i) => (mixed(i) ? length(i, G, contrast, 1, v) : 0), half = Math.floor(G / 2);
  const scale = sigma(half, G) / long(half), ps = Array.from({ length: 97 }, (_, i) => (i + 2) / 100);
  for (const name in SLIDERS) $("dial-" + name + "-out").textContent = short(dial[name]);
  const every = Math.ceil(G / 8), ticks = ks.filter((i) => i % every === 0);
  $("plots").replaceChildren(
    plot({ x: { low: 0, high: G, ticks, name: "k, right completions of G" }, y: { low: 0, high: 0.6, ticks: [0, 0.2, 0.4, 0.6] },
      lines: [
        { points: ks.map((i) => [i, sigma(i, G)]), colour: "var(--up)", dots: true, name: "σ: GRPO", at: half },
        { points: ks.map((i) => [i, sigma(i, G) ** 2]), colour: "var(--down)", dots: true, name: "σ²: Dr. GRPO", at: half, dy: 20 },
        { points: ks.filter(mixed).map((i) => [i, long(i) * scale]), colour: "var(--soft)", dash: "5 4" },
      ], marks: [{ point: [k, s], colour: "var(--up)" }, { point: [k, s * s], colour: "var(--down)" }],
      caption: "The coefficient of one group's update. Dashed: the length of GRPO's update, drawn to meet σ in the middle.",
      text: `Coefficient over k at G = ${G}: at k = ${k} GRPO's is ${short(s)} and Dr. GRPO's ${short(s * s)}.` }),
    plot({ x: { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], name: "p, probability of a right completion" }, y: { low: 0, high: 6, ticks: [0, 2, 4, 6] },
      lines: [
        { points: ps.map((x) => [x, 1 / Math.sqrt(x * (1 - x))]), colour: "var(--soft)", dash: "5 4" },
        { points: ps.map((x) => [x, weight(x, G)]), colour: "var(--up)", name: "GRPO", at: 48 },
        { points: ps.map((x) => [x, weightDrGRPO(G)]), colour: "var(--down)", name: "Dr. GRPO", at: 48, dy: 16 },
      ], marks: [{ point: [p, weight(p, G)], colour: "var(--up)" }],
      caption: "What a problem counts for on average, w(p). Dashed: GRPO's with endless groups.",
      text: `Weight of a problem over p at G = ${G}: at p = ${short(p)} GRPO gives ${short(weight(p, G))}, at one half ${short(weight(0.5, G))}; Dr. GRPO ${short(weightDrGRPO(G))} everywhere.` }),
    plot({ x: { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], name: "p, probability of a right completion" }, y: { low: 0, high: 1, ticks: [0, 0.5, 1] },
      lines: [
        { points: ps.map((x) => [x, silent(x, G)]), colour: "var(--green)", name: "silent", at: 12, anchor: "start" },
        { points: ps.map((x) => [x, fidelity(x, G)]), colour: "var(--up)", dash: "5 4", name: "fidelity", at: 70, dy: 18 },
      ], marks: [{ point: [p, silent(p, G)], colour: "var(--green)" }, { point: [p, fidelity(p, G)], colour: "var(--up)" }],
      caption: "How often a group is silent, and how much of σ's limit for large groups GRPO has on average (fidelity).",
      text: `At p = ${short(p)} and G = ${G}, ${short(silent(p, G))} of the groups are silent and the fidelity is ${short(fidelity(p, G))}.` }));
  const numbers = {
    [`σ at k = ${k}`]: `${short(s)}: GRPO's coefficient`, "σ²": `${short(s * s)}: Dr. GRPO's`,
    [`silent, p^G + q^G`]: `${short(silent(p, G))} of the groups at p = ${short(p)}`, "fidelity, E[σ] / √(pq)": short(fidelity(p, G)),
    "w(p), GRPO": `${short(weight(p, G))}; at p = ½ it is ${short(weight(0.5, G))}; Dr. GRPO ${short(weightDrGRPO(G))}`,
    "length of GRPO's update": mixed(k) ? `${short(long(k))} √v₊, ${short(long(k) / long(half))} times that at k = ${half}` : "0: the group is silent",
  };
  $("numbers").replaceChildren(...Object.entries(numbers).flatMap(([name, what]) => [element("dt", {}, name), element("dd", {}, what)]));
}

// ---------------------------------------------------------------------- at the start

$("policy").append(...POLICIES.map((name) => element("option", { value: name }, name)));
$("switch").append(...["GRPO", "Dr. GRPO", "DAPO"].map((name) => element("label", {}, element("input", { type: "radio", name: "algorithm", value: name,
  checked: name === state.algorithm, onchange: () => { state.algorithm = name; if (finished()) showGroup(); } }), name)));
$("guess").append(...GUESSES.map((name) => element("button", { type: "button", "aria-pressed": "false", onclick: () => guess(name) }, name)));
$("sliders").append(...Object.entries(SLIDERS).map(([name, [what, min, max, step]]) => {
  const at = { v: 0, contrast: -10 }[name] ?? dial[name];
  return element("label", { class: "slider" }, element("span", {}, what),
    element("input", { type: "range", id: "dial-" + name, min, max, step, value: at, oninput: (event) => turnDial(name, Number(event.target.value)) }),
    element("output", { id: `dial-${name}-out`, for: "dial-" + name }));
}));
$("ask").addEventListener("submit", (event) => { event.preventDefault(); write(); });
$("draw").addEventListener("click", () => { $("problem").value = draw(stream(state.seed * 7919)); write(); });
$("policy").addEventListener("change", write);
$("ratio").addEventListener("input", (event) => { state.ratio = Math.exp(event.target.value / 100); if (finished()) showCards(); });
$("guess").addEventListener("submit", (event) => event.preventDefault());
showDial();
write();

// For the console, and for the tests.
globalThis.sigmaLadder = { policies, Reader, softmax, pick, encode, complete, stream, answer, value, draw, advantages, pushes, coefficients, divisor,
  closed: { sigma, silent, fidelity, weight, weightDrGRPO, length } };
