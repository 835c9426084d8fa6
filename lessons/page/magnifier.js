// The magnifier: one group of the strip, letter by letter, and the numbers behind a token.

import { isMixed, mean, pushes, sum } from "./algorithms.js";
import { value } from "./arithmetic.js";
import { lengthsIn, rewardsIn } from "./lanes.js";
import { EOS, TOKENS } from "./model.js";
import { shade } from "./strip.js";

export const $ = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const letter = (id) => (id === null ? "·" : id === EOS ? "∎" : TOKENS[id]);
const typeset = (expression) => expression.replaceAll("-", "−");
const short = (x) => String(Number(x.toFixed(2)));
const percent = (logp) => `${Number((100 * Math.exp(logp)).toPrecision(2))} %`;

export function signed(x, digits = 2) { // 0.5 as +0.50
  const size = Math.abs(x).toFixed(digits);
  return Number(size) ? (x < 0 ? "−" : "+") + size : "0";
}

// The strongest push that a completion of average length can get from an algorithm, over all
// numbers of right ones: full colour.
export function fullColour(algorithm, lengths) {
  const same = lengths.map(() => Math.round(mean(lengths))),
    ks = same.slice(1).map((_, k) => k + 1);
  const all = ks.flatMap((k) => pushes(algorithm, same.map((_, i) => Number(i < k)), same));
  return Math.max(...all.flatMap(({ tokens }) => tokens.map(({ weight }) => Math.abs(weight))));
}

export function title(group, column) {
  const { prompt } = group[0], k = sum(rewardsIn(group)), problem = prompt?.slice(0, -1);
  return `Step ${column + 1}${problem ? ` · ${typeset(problem)} = ${value(problem)}` : ""}: ` +
    `${k} of ${group.length} right`;
}

// In a sentence: what the verdicts make of a group.
export function explain(group, results, algorithm) {
  const rewards = rewardsIn(group), G = group.length, k = sum(rewards);
  const pushed = results.some((row) => row.advantage);
  if (!isMixed(rewards) && !pushed)
    return `All ${rewards[0] ? "right" : "wrong"}: silent. Every advantage is 0, ` +
      (algorithm.dynamic_sampling ? "and another group replaces it." : "and nothing is pushed.");
  const A = (R) => signed(mean(results.filter((_, i) => rewards[i] === R).map((row) =>
    row.advantage)));
  const each = [k && `right ones get A = ${A(1)}`, G - k && `wrong ones ${A(0)}`].filter(Boolean);
  return `σ = ${short(Math.sqrt(k * (G - k)) / G)}: ${each.join(", ")}.`;
}

// The rows of a group: verdict, advantage, and each token in the colour of its push. full: the
// weight of full colour
export function rowsOf(group, results, full, flip, point) {
  return group.map(({ ids, reward, verdict }, i) => {
    const text = ids.map(letter), A = signed(results[i].advantage), flipped = reward !== verdict;
    const spoken = `completion ${i + 1}: ${reward ? "right" : "wrong"}, advantage ${A}` +
      `${flipped ? ", flipped by you" : ""}; press to flip, arrow keys for its tokens`;
    const attributes = { type: "button",
      class: `${reward ? "up" : "down"}${flipped ? " flipped" : ""}`,
      "data-row": i, "aria-label": spoken, onclick: () => flip(i) };
    const button = element("button", attributes, reward ? "✓" : "✗", element("span", {}, A));
    const tokens = results[i].tokens.map(({ weight }, t) => element("i", {
      class: weight > 0 ? "pos" : weight < 0 ? "neg" : "", onpointerenter: () => point(i, t),
      style: `background: ${shade(weight, full)}` }, text[t]));
    return element("li", {}, button,
      element("span", { class: "tokens", role: "img", "aria-label": text.join("") }, ...tokens));
  });
}

// The token whose probability the step has changed most, [row, token], or the first.
export function mostChanged(group) {
  const moves = group.map(({ logps, after }) =>
    (after ?? []).map((logp, t) => Math.abs(Math.exp(logp) - Math.exp(logps[t]))));
  const most = Math.max(...moves.flat()), i = moves.findIndex((row) => row.includes(most));
  return i < 0 ? [0, 0] : [i, moves[i].indexOf(most)];
}

// The numbers of one token, in a line.
export function numbersOf(group, results, { divisor }, i, t) {
  const { ids, logps, after } = group[i], { weight } = results[i].tokens[t], G = group.length;
  const under = { length: `(${G} × ${ids.length} tokens)`, limit: `(${G} × 56)`,
    tokens: `${sum(lengthsIn(group))} tokens` }[divisor];
  const push = weight ? `A / ${under} = ${signed(weight, 4)}` : "no push";
  const moved = !logps ? ""
    : after ? ` · probability ${percent(logps[t])} → ${percent(after[t])}`
    : ` · probability ${percent(logps[t])}`;
  return `“${letter(ids[t])}”: ${push}${moved}`;
}
