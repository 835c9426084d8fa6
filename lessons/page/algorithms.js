// What each script's compute_advantages and policy_loss do with one group of completions, as numbers.
// tests/test_page.py compares the weights with the autograd of the scripts' own losses.

import { LONGEST } from "./model.js";

export const ALGORITHMS = ["REINFORCE", "PPO", "GRPO", "Dr. GRPO", "DAPO", "RLOO", "MaxRL", "GSPO", "CISPO"];
export const LAMBDA = 0.95, MAX_RATIO = 5, OVERLONG = 8; // gae_lambda, max_ratio, overlong_buffer
export const CLIPS = { // the range of the ratio: below 1 - low and above 1 + high a push of that sign is stopped
  PPO: [0.2, 0.2], GRPO: [0.2, 0.2], "Dr. GRPO": [0.2, 0.2], RLOO: [0.2, 0.2], MaxRL: [0.2, 0.2],
  DAPO: [0.2, 0.28], GSPO: [0.009, 0.012],
};
const sum = (list) => list.reduce((a, b) => a + b, 0);
const mean = (list) => sum(list) / list.length;
const deviation = (list) => Math.sqrt(mean(list.map((x) => (x - mean(list)) ** 2)));

// The advantage of every completion, from rewards of 0 and 1 and lengths in tokens; PPO's are in `ppo`.
export function advantages(algorithm, rewards, lengths) {
  const G = rewards.length, k = sum(rewards), silent = k === 0 || k === G;
  const zero = rewards.map(() => 0), centred = (list) => list.map((R) => R - mean(list));
  switch (algorithm) {
    case "REINFORCE": return rewards;
    case "Dr. GRPO": return centred(rewards);
    case "RLOO": return rewards.map((R) => R - (k - R) / (G - 1));
    case "MaxRL": return k ? centred(rewards).map((A) => A / (k / G)) : zero;
    case "GRPO": case "GSPO": return silent ? zero : centred(rewards).map((A) => A / deviation(rewards));
    case "DAPO": case "CISPO": { // right or wrong decides what is silent, not the reward with its overlong penalty
      const shaped = rewards.map((R, i) => 2 * R - 1 - Math.max(0, (lengths[i] - LONGEST + OVERLONG) / OVERLONG));
      return silent ? zero : centred(shaped).map((A) => A / deviation(shaped));
    }
  }
}

// PPO's advantage of every token: GAE with a critic that forecasts k/G before every token, whitened over the group.
export function ppo(rewards, lengths) {
  const raw = rewards.map((R, i) => Array.from({ length: lengths[i] }, (_, t) =>
    LAMBDA ** (lengths[i] - 1 - t) * (R - mean(rewards))));
  const centre = mean(raw.flat()), spread = Math.sqrt(mean(raw.flat().map((A) => (A - centre) ** 2)) + 1e-8);
  return raw.map((row) => row.map((A) => (A - centre) / spread));
}

// What the completions of one group are pushed by, as if the group were the whole batch and without the KL term:
// minus the derivative of the loss by the log-probability of each token, where every ratio is `ratio`.
// -> [{advantage, tokens: [{weight, stopped}]}], one a completion
export function pushes(algorithm, rewards, lengths, ratio = 1) {
  const G = rewards.length, [low, high] = CLIPS[algorithm] ?? [Infinity, Infinity];
  const ofTokens = algorithm === "PPO" ? ppo(rewards, lengths)
    : advantages(algorithm, rewards, lengths).map((A, i) => Array(lengths[i]).fill(A));
  const factor = algorithm === "REINFORCE" ? 1 : algorithm === "CISPO" ? Math.min(ratio, MAX_RATIO) : ratio;
  return ofTokens.map((row, i) => ({
    advantage: algorithm === "PPO" ? mean(row) : row[0],
    tokens: row.map((A) => {
      const stopped = A > 0 ? ratio > 1 + high : A < 0 && ratio < 1 - low;
      return { weight: stopped ? 0 : (A * factor) / divisor(algorithm, G, lengths, i), stopped };
    }),
  }));
}

export function divisor(algorithm, G, lengths, i) {
  if (["GRPO", "GSPO"].includes(algorithm)) return G * lengths[i];
  if (["PPO", "DAPO", "CISPO"].includes(algorithm)) return sum(lengths);
  return G * LONGEST; // REINFORCE, Dr. GRPO, RLOO, MaxRL
}

// The coefficient of one group's update: what its right completions get in all, and its wrong ones, sum of A / G.
export function coefficients(algorithm, rewards, lengths) {
  const A = advantages(algorithm, rewards, lengths), G = rewards.length;
  return { right: sum(A.map((a, i) => a * rewards[i])) / G, wrong: sum(A.map((a, i) => a * (1 - rewards[i]))) / G };
}
