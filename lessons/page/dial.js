// A guess, and the dial that it opens: what one group weighs, by how many of its completions are right.

import { sigma, silent, weight, weightDrGRPO } from "./closed.js";
import { short } from "./group.js";
import { $, element, plot } from "./pictures.js";

const dial = { G: 8, k: 1, p: 0.12 };
const GUESSES = ["larger", "about two thirds", "about a quarter"];
const SLIDERS = { // [label, lowest, highest and first position, the value at a position]
  G: ["G, completions", 2, 32, 8, (x) => x], k: ["k, right ones", 0, 8, 1, (x) => x], p: ["p, chance of a right one", 2, 98, 12, (x) => x / 100],
};

function guess(name) {
  for (const button of $("guess").children) button.setAttribute("aria-pressed", button.textContent === name);
  $("verdict").textContent = `${name === GUESSES[1] ? "Yes: about" : "About"} two thirds. √7 / 8 = ${short(sigma(1, 8))} = σ, against ${sigma(4, 8)}: ` +
    `the advantage is large, but only one completion has it. Under Dr. GRPO it is σ², ${short(sigma(1, 8) ** 2)} against ${sigma(4, 8) ** 2}, under a half; ` +
    "dividing by σ lifts that to two thirds, never above the even group.";
  $("locked").hidden = true;
  $("open").hidden = false;
}

function turnDial(name, position) {
  dial[name] = SLIDERS[name][4](position);
  $("dial-k").max = dial.G;
  dial.k = Number($("dial-k").value); // the browser has limited it to G
  showDial();
}

export function setDial(G, k) { // to the group on the page
  $("dial-G").value = G;
  $("dial-k").max = G;
  $("dial-k").value = k;
  Object.assign(dial, { G, k });
  showDial();
}

function showDial() {
  const { k, G, p } = dial, s = sigma(k, G), square = (k) => (k * (G - k)) / G ** 2, ks = Array.from({ length: G + 1 }, (_, i) => i), half = Math.floor(G / 2);
  const ps = Array.from({ length: 97 }, (_, i) => (i + 2) / 100), share = (x) => (x < 0.001 ? "under 0.001" : short(x));
  for (const name in SLIDERS) {
    $(`dial-${name}-out`).textContent = short(dial[name]);
    $("dial-" + name).setAttribute("aria-valuetext", short(dial[name]));
  }
  const every = Math.ceil(G / 8), chance = { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], name: "p, probability of a right completion" };
  const orange = { colour: "var(--orange)", ink: "var(--orange-ink)", name: "Dr. GRPO" };
  $("plots").replaceChildren(
    plot({ x: { low: 0, high: G, ticks: ks.filter((i) => i % every === 0), name: "k, right completions of G" }, y: { low: 0, high: 0.8, ticks: [0, 0.2, 0.4, 0.6, 0.8] },
      lines: [
        { points: ks.map((i) => [i, sigma(i, G)]), colour: "var(--up)", dots: true, name: "GRPO: σ", at: half },
        { ...orange, points: ks.map((i) => [i, square(i)]), dots: true, name: "Dr. GRPO: σ²", at: half, dy: 20 },
      ], marks: [{ point: [k, s], colour: "var(--up)" }, { point: [k, square(k)], colour: "var(--orange)" }], caption: "The coefficient of one group's update.",
      spoken: `At k = ${k} of G = ${G} it is ${short(s)} for GRPO and ${short(square(k))} for Dr. GRPO.` }),
    plot({ x: chance, y: { low: 0, high: 6, ticks: [0, 2, 4, 6] },
      lines: [
        { points: ps.map((x) => [x, 1 / Math.sqrt(x * (1 - x))]), colour: "var(--soft)", dash: "5 4" },
        { points: ps.map((x) => [x, weight(x, G)]), colour: "var(--up)", name: "GRPO", at: 48 },
        { ...orange, points: ps.map((x) => [x, weightDrGRPO(G)]), at: 48, dy: 16 },
      ], marks: [{ point: [p, weight(p, G)], colour: "var(--up)" }],
      caption: "How much a problem counts on average: its mean update is this number times the direction that raises p. Dashed: GRPO as G grows.",
      spoken: `At p = ${short(p)} it is ${short(weight(p, G))} for GRPO, at one half ${short(weight(0.5, G))}; for Dr. GRPO always ${short(weightDrGRPO(G))}.` }),
    plot({ x: chance, y: { low: 0, high: 1, ticks: [0, 0.5, 1] },
      lines: [{ points: ps.map((x) => [x, silent(x, G)]), colour: "var(--green)", name: "silent", at: 12, anchor: "start" }], marks: [{ point: [p, silent(p, G)], colour: "var(--green)" }],
      caption: "The share of groups that are silent, all right or all wrong.", spoken: `At p = ${short(p)} and G = ${G} it is ${share(silent(p, G))}.` }));
}

$("guess").append(...GUESSES.map((name) => element("button", { type: "button", "aria-pressed": "false", onclick: () => guess(name) }, name)));
$("sliders").append(...Object.entries(SLIDERS).map(([name, [what, min, max, start]]) => element("div", { class: "slider" },
  element("label", { for: "dial-" + name }, what), element("input", { type: "range", id: "dial-" + name, min, max, value: start, autocomplete: "off",
    oninput: (event) => turnDial(name, Number(event.target.value)) }), element("span", { id: `dial-${name}-out` }))));
showDial();
