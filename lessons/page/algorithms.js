// What each script's compute_advantages and policy_loss do with one group of completions, as numbers.
// tests/test_in_browser.py compares all of this with the scripts' settings and the autograd of their losses.

import { LONGEST } from "./model.js";

const sum = (list) => list.reduce((a, b) => a + b, 0);
const mean = (list) => sum(list) / list.length;
const deviation = (list) => Math.sqrt(mean(list.map((x) => (x - mean(list)) ** 2)));
const centred = (list) => list.map((x) => x - mean(list));
const standardised = (list) => centred(list).map((x) => (deviation(list) ? x / deviation(list) : 0));
const isMixed = (rewards) => rewards.some((R) => R !== rewards[0]);

export const LAMBDA = 0.95; // gae_lambda
export const OVERLONG = 8; // overlong_buffer: the penalty begins at LONGEST - OVERLONG tokens

// A token gets A · ratio / divisor. The fields of an algorithm:
//   advantages  (rewards of 0 and 1, lengths in tokens) -> one per completion, or in PPO a list with one per token
//   divisor     "length": G times the completion's length; "limit": G times the length limit; "tokens": all tokens
//   clip        [low, high]: a positive A is stopped where the ratio is above high, a negative one where it is below low
//   cap         the largest ratio that counts; 0 for an algorithm without a ratio
export const ALGORITHMS = {
  REINFORCE: { advantages: (R) => R, divisor: "limit", cap: 0 },
  PPO: { advantages: ppo, divisor: "tokens", clip: [0.8, 1.2] },
  GRPO: { advantages: standardised, divisor: "length", clip: [0.8, 1.2] },
  "Dr. GRPO": { advantages: centred, divisor: "limit", clip: [0.8, 1.2] },
  DAPO: { advantages: dapo, divisor: "tokens", clip: [0.8, 1.28] },
  RLOO: { advantages: (rewards) => rewards.map((R) => R - (sum(rewards) - R) / (rewards.length - 1)), divisor: "limit", clip: [0.8, 1.2] },
  MaxRL: { advantages: (R) => centred(R).map((A) => (mean(R) ? A / mean(R) : 0)), divisor: "limit", clip: [0.8, 1.2] },
  GSPO: { advantages: standardised, divisor: "length", clip: [0.991, 1.012] },
  CISPO: { advantages: dapo, divisor: "tokens", cap: 5 },
};

// Rewards of 1 and -1, less the penalty for overlong completions; the verdicts alone decide whether a group is mixed.
function dapo(rewards, lengths) {
  const shaped = rewards.map((R, i) => 2 * R - 1 - Math.max(0, (lengths[i] - LONGEST + OVERLONG) / OVERLONG));
  return isMixed(rewards) ? standardised(shaped) : rewards.map(() => 0);
}

// GAE with a critic that forecasts the share of right completions before every token, whitened over the group.
function ppo(rewards, lengths) {
  const raw = rewards.map((R, i) => Array.from({ length: lengths[i] }, (_, t) =>
    LAMBDA ** (lengths[i] - 1 - t) * (R - mean(rewards))));
  const centre = mean(raw.flat()), spread = Math.sqrt(mean(raw.flat().map((A) => (A - centre) ** 2)) + 1e-8);
  return raw.map((row) => row.map((A) => (A - centre) / spread));
}

export function divisorOf(name, lengths, i) {
  const G = lengths.length;
  return { length: G * lengths[i], limit: G * LONGEST, tokens: sum(lengths) }[ALGORITHMS[name].divisor];
}

// The pushes on a group's tokens, as if the group were the whole optimizer batch and without the KL term: minus the
// derivative of the loss by each token's log-probability, where every ratio is `ratio`.
// -> [{advantage, tokens: [{weight, stopped}]}], one per completion
export function pushes(name, rewards, lengths, ratio = 1) {
  const { advantages, clip: [low, high] = [0, Infinity], cap = Infinity } = ALGORITHMS[name];
  const factor = cap ? Math.min(ratio, cap) : 1;
  return advantages(rewards, lengths).map((A, i) => {
    const row = Array.isArray(A) ? A : Array(lengths[i]).fill(A);
    return {
      advantage: mean(row),
      tokens: row.map((a) => {
        const stopped = a > 0 ? ratio > high : a < 0 && ratio < low;
        return { weight: stopped ? 0 : (a * factor) / divisorOf(name, lengths, i), stopped };
      }),
    };
  });
}

// The sum of A / G over the right completions, which is the coefficient of the group's update, and over the wrong ones.
// PPO has none: each of its tokens has its own advantage.
export function coefficients(name, rewards, lengths) {
  if (name === "PPO") return null;
  const A = ALGORITHMS[name].advantages(rewards, lengths), G = rewards.length;
  return { right: sum(A.map((a, i) => a * rewards[i])) / G, wrong: sum(A.map((a, i) => a * (1 - rewards[i]))) / G };
}
