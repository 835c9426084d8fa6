// A group on the page: its completions with the pushes on their tokens, what a step did to them, and the same group under nine algorithms.

import { ALGORITHMS, LAMBDA, OVERLONG, centred, coefficients, divisorOf, isMixed, mean, pushes, standardised, sum } from "./algorithms.js";
import { textOf, value } from "./arithmetic.js";
import { sigma } from "./closed.js";
import { EOS, LONGEST, TOKENS } from "./model.js";
import { blocks, element, shade, signed } from "./pictures.js";

export const short = (x) => String(Number(x.toFixed(3)));
export const percent = (p) => `${p >= 0.0995 ? Math.round(100 * p) : Number((100 * p).toPrecision(1))} %`;
const rewardsIn = (rows) => rows.map((row) => row.reward);
const lengthsIn = (rows) => rows.map((row) => row.ids.length);
const letters = (ids) => ids.map((id) => (id === EOS ? "∎" : TOKENS[id]));
const typeset = (expression) => expression.replaceAll("-", "−");

// ---------------------------------------------------------------------- the completions

const row = (verdict, amount, label, tokens) => element("li", {}, verdict, element("span", { class: "amount" }, amount),
  element("span", { class: "tokens", role: "img", "aria-label": label }, ...tokens));

// The group with the push on each token. turn(i) flips a verdict; without it the verdicts are only shown.
export function pushed(rows, algorithm, turn) {
  const full = fullColour(algorithm, lengthsIn(rows)), results = pushes(algorithm, rewardsIn(rows), lengthsIn(rows));
  return rows.map(({ ids, reward, verdict }, i) => {
    const turned = reward !== verdict, A = signed(results[i].advantage), text = letters(ids);
    const button = element("button", { type: "button", class: reward ? "up" : "down", "data-row": i, disabled: !turn, onclick: () => turn(i),
      "aria-label": `completion ${i + 1}: ${reward ? "right" : "wrong"}${turned ? ", flipped by you" : ""}; flip` }, `${reward ? "✓ right" : "✗ wrong"}${turned ? " *" : ""}`);
    return row(button, `A = ${A}`, `${textOf(ids)}; advantage ${A}`, results[i].tokens.map(({ weight }, t) =>
      element("i", { class: weight > 0 ? "pos" : weight < 0 ? "neg" : "", style: `background: ${shade(weight, full)}` }, text[t])));
  });
}

// What a step did to the group it was trained on: two bars over each token, its probability before and after.
export function changed(rows) {
  const most = Math.max(...rows.flatMap(({ logps, after }) => after.map((logp, t) => Math.abs(logp - logps[t]))));
  return rows.map(({ ids, reward, logps, after }) => {
    const text = letters(ids), chances = [logps, after].map((list) => (100 * Math.exp(sum(list))).toFixed(1)), change = `${chances[0]} → ${chances[1]} %`;
    return row(element("span", { class: reward ? "up" : "down" }, reward ? "✓ right" : "✗ wrong"), change, `${textOf(ids)}; probability ${change}`,
      after.map((logp, t) => element("i", { class: `bars ${logp > logps[t] ? "pos" : "neg"}`, title: `${text[t]}: ${percent(Math.exp(logps[t]))} → ${percent(Math.exp(logp))}`,
        style: `--before: ${Math.exp(logps[t]).toFixed(3)}; --after: ${Math.exp(logp).toFixed(3)}; background-color: ${shade(logp - logps[t], most)}` }, text[t])));
  });
}

export function summaryOfChange(rows, algorithm, step) {
  const results = pushes(algorithm, rewardsIn(rows), lengthsIn(rows));
  const tokens = rows.flatMap(({ ids, logps, after }, i) => letters(ids).map((letter, t) => ({ letter, i, push: results[i].tokens[t].weight,
    from: Math.exp(logps[t]), to: Math.exp(after[t]), change: after[t] - logps[t] })));
  const more = tokens.filter(({ change }) => change > 0).length, less = tokens.filter(({ change }) => change < 0).length;
  const along = tokens.filter(({ push, change }) => push * change > 0).length, driven = tokens.filter(({ push }) => push).length;
  const [most] = tokens.toSorted((a, b) => Math.abs(b.to - b.from) - Math.abs(a.to - a.from));
  return `Step ${step} made ${more} of these ${tokens.length} tokens more probable and ${less} less. Most changed: “${most.letter}” in completion ${most.i + 1}, ` +
    `${percent(most.from)} → ${percent(most.to)}. ` + (driven ? `${along} of ${driven} moved the way they were pushed; the other problems of the step, which share the weights, moved the rest.`
      : "The group was silent: only the other problems of the step, which share the weights, moved its tokens.");
}

// The strongest push that a completion of average length can get from an algorithm, over all k: full colour.
export function fullColour(algorithm, lengths) {
  const same = lengths.map(() => Math.round(mean(lengths))), ks = same.slice(1).map((_, k) => k + 1);
  return Math.max(...ks.flatMap((k) => pushes(algorithm, same.map((_, i) => Number(i < k)), same)).flatMap(({ tokens }) => tokens.map(({ weight }) => Math.abs(weight))));
}

// ---------------------------------------------------------------------- in words

export function count(rows, problem) {
  const G = rows.length, k = sum(rewardsIn(rows)), turned = rows.some(({ reward, verdict }) => reward !== verdict) ? " (* flipped by you)" : "";
  return `${typeset(problem)} = ${value(problem)}: ${k} of ${G} right${turned}, σ = ${short(sigma(k, G))}`;
}

const IDEAS = {
  REINFORCE: "The reward itself is the advantage: right completions are pushed up, wrong ones not at all.",
  PPO: "A second network, the critic, forecasts the reward before every token: what turns out better than forecast is pushed up. (Its stand-in here forecasts the group's mean.)",
  GRPO: "The advantage is the reward minus the group's mean, divided by σ. Each completion counts alike, so that a token of a long one is pushed less.",
  "Dr. GRPO": "GRPO without both divisions: ÷ σ gives lopsided groups more weight, ÷ length lets long wrong completions off lightly.",
  DAPO: "÷ σ, but all tokens count alike. The clip lets a token rise by 28 %, not 20; silent groups are replaced; completions near the length limit lose reward.",
  RLOO: "What is subtracted from a completion's reward is the mean reward of the others.",
  MaxRL: "÷ the group's mean reward, so that problems that are seldom solved count more.",
  GSPO: "GRPO with one ratio for a whole completion, and a narrow clip.",
  CISPO: "DAPO without a clip: the ratio, up to 5, is only a weight and stops no token.",
};

// An algorithm's rule with a group's numbers, in lines.
function rules(name, algorithm, rewards, lengths) {
  const { advantages, divisor, clip, cap } = algorithm, G = rewards.length, k = sum(rewards), a = short(k / G), s = short(sigma(k, G));
  const late = lengths.some((length) => length > LONGEST - OVERLONG) ? ", less if overlong" : "";
  const rule = new Map([[standardised, `(R − ${a}) / ${s}`], [centred, `R − ${a}`], [ALGORITHMS.DAPO.advantages, `(R − ${a}) / ${s}${late}`], [ALGORITHMS.REINFORCE.advantages, "R"],
    [ALGORITHMS.RLOO.advantages, `R − (${k} − R) / ${G - 1}`], [ALGORITHMS.MaxRL.advantages, `(R − ${a}) / ${a}`],
    [ALGORITHMS.PPO.advantages, `${LAMBDA}^(tokens left) · (R − ${a}), then standardised`]]).get(advantages);
  const values = [[1, "right"], [0, "wrong"]].map(([reward, what]) => [advantagesOf(algorithm, rewards, lengths, reward), what]).filter(([A]) => A);
  const sums = coefficients(algorithm, rewards, lengths), factor = clip ? "ratio · " : cap ? `min(ratio, ${cap}) · ` : "";
  const under = { length: `(${G} · its completion's length): in a short one fewer tokens share the push`, limit: `(${G} · ${LONGEST})`, tokens: `${divisorOf(algorithm, lengths, 0)}, all tokens` }[divisor];
  return [`A = ${rule}${sums ? `: ${values.map(([A, what]) => `${what} ${A}`).join(", ")}` : ""}`, `A token gets ${factor}A / ${under}`,
    sums ? `Coefficient, the sum of A / ${G} over the right completions: ${signed(sums.right, 3)}` : "No coefficient: every token has its own A"];
}

// "+1.73": every value that an algorithm gives to right (1) or wrong (0) completions.
function advantagesOf({ advantages }, rewards, lengths, reward) {
  const given = advantages(rewards, lengths).filter((_, i) => rewards[i] === reward);
  return [...new Set(given.map((A) => signed(A)))].join(" or ");
}

export function explain(name, algorithm, rows) {
  const rewards = rewardsIn(rows), mixed = isMixed(rewards), pushing = pushes(algorithm, rewards, lengthsIn(rows)).some((row) => row.advantage);
  const silent = `All ${rows.length} are ${rewards[0] ? "right" : "wrong"}: the group is silent. σ = 0, every advantage is 0, and nothing is pushed. ` +
    (algorithm.dynamic_sampling ? "A step leaves it out and draws other problems until it has eight mixed groups." : "");
  return [element("p", {}, element("b", {}, `${name}. `), mixed || pushing ? IDEAS[name] : silent),
    ...(mixed ? [element("p", { class: "note" }, `${rules(name, algorithm, rewards, lengthsIn(rows)).join(". ").replaceAll("ratio · ", "")}.`)] : [])];
}

// ---------------------------------------------------------------------- the group under an algorithm, at a ratio

export function card(name, rows, ratio) {
  const algorithm = ALGORITHMS[name], { clip, cap } = algorithm, rewards = rewardsIn(rows), lengths = lengthsIn(rows);
  const results = pushes(algorithm, rewards, lengths, ratio), tokens = results.flatMap((row) => row.tokens);
  const stopped = tokens.filter((token) => token.stopped).length, none = tokens.every((token) => !token.weight && !token.stopped);
  const silence = algorithm.critic ? "the critic predicted every reward: no push" : algorithm.dynamic_sampling ? "silent: left out, another problem is drawn" : "silent: no push";
  const total = (reward) => signed(sum(results.filter((_, i) => rewards[i] === reward).flatMap((row) => row.tokens).map((token) => token.weight)), 3);
  const spoken = results.map((row, i) => `completion ${i + 1}, ${rewards[i] ? "right" : "wrong"}: ` +
    (row.tokens[0].stopped ? "stopped" : `${signed(row.tokens[0].weight, 4)} at its first token`)).join("; ");
  const lines = none ? [] : [...rules(name, algorithm, rewards, lengths), `All tokens: right ${total(1)}, wrong ${total(0)}`];
  return element("article", { "data-name": name }, element("h3", {}, name), element("p", { class: "idea" }, IDEAS[name]),
    blocks(results, fullColour(algorithm, lengths), `${name}. ${spoken}`), none ? element("p", { class: "silent" }, silence) : "", ...lines.map((line) => element("p", {}, line)),
    element("p", { class: "idea" }, clip ? `Clip ${clip.join(" to ")}: ${stopped} of ${tokens.length} tokens stopped` : cap ? "Nothing is stopped" : "One update per batch: no ratio"));
}
