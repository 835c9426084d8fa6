// What each script's compute_advantages, policy_loss and value_loss do, as numbers: losses, and
// their derivatives by the log-probability of each token. What has a name in the scripts has the
// same name here. tests/test_page_training.py and tests/test_in_browser.py compare all of this with
// the scripts' settings and their autograd.

import { LONGEST } from "./model.js";

export const sum = (list) => list.reduce((a, b) => a + b, 0);
export const mean = (list) => sum(list) / list.length;
const deviation = (list) => Math.sqrt(mean(list.map((x) => (x - mean(list)) ** 2)));
export const centred = (list) => list.map((x) => x - mean(list));
export const isMixed = (rewards) => rewards.some((R) => R !== rewards[0]);
export const standardised = (list) => centred(list).map((x) =>
  (isMixed(list) ? x / deviation(list) : 0));

// The advantages of a batch, for an algorithm that divides them by their standard deviation
export function overBatch(advantages, { over_batch }) {
  const divisor = over_batch ? Math.max(deviation(advantages), 1e-4) : 1;
  return advantages.map((A) => A / divisor);
}

export const LAMBDA = 0.95; // gae_lambda
export const OVERLONG = 8; // overlong_buffer: the penalty begins at LONGEST - OVERLONG tokens

// A token gets A · ratio / divisor. The fields of an algorithm:
//   advantages  (rewards of 0 and 1, lengths in tokens) -> one per completion; in PPO a list each
//   divisor     "length": G times the completion's length; "limit": G times the length limit;
//               "tokens": all tokens
//   clip        [low, high]: a positive A is stopped where the ratio is above high, a negative one
//               where it is below low
//   cap         the largest ratio that counts; 0 for an algorithm without a ratio
//   whole       the ratio is that of the whole completion, the geometric mean of its tokens'
//   kl_coef     weight of the KL to the reference policy: k3 in the loss; where there is a critic,
//               k1 in the reward
//   over_batch  the advantages of a batch are divided by their standard deviation
//   dynamic_sampling  silent groups are replaced by others
//   critic      PPO: advantages come from a critic, a network of its own
export const ALGORITHMS = {
  REINFORCE: { advantages: (R) => R, divisor: "limit", cap: 0, num_minibatches: 1 },
  PPO: { advantages: ppo, divisor: "tokens", clip: [0.8, 1.2], kl_coef: 0.04, critic: true },
  GRPO: { advantages: standardised, divisor: "length", clip: [0.8, 1.2], kl_coef: 0.04 },
  "Dr. GRPO": { advantages: centred, divisor: "limit", clip: [0.8, 1.2], kl_coef: 0.04 },
  DAPO: { advantages: dapo, divisor: "tokens", clip: [0.8, 1.28], dynamic_sampling: true },
  RLOO: { advantages: rloo, divisor: "limit", clip: [0.8, 1.2], kl_coef: 0.04 },
  MaxRL: { advantages: (R) => centred(R).map((A) => (mean(R) ? A / mean(R) : 0)), divisor: "limit",
    clip: [0.8, 1.2], kl_coef: 0.04 },
  "Batch sigma": { advantages: centred, divisor: "limit", clip: [0.8, 1.2], kl_coef: 0.04,
    over_batch: true },
  GSPO: { advantages: standardised, divisor: "length", clip: [0.991, 1.012], whole: true,
    kl_coef: 0.04 },
  CISPO: { advantages: dapo, divisor: "tokens", cap: 5, dynamic_sampling: true },
};

function rloo(rewards) {
  return rewards.map((R) => R - (sum(rewards) - R) / (rewards.length - 1));
}

// Rewards of 1 and -1, less the penalty for overlong completions
const shape = (rewards, lengths) =>
  rewards.map((R, i) => 2 * R - 1 - Math.max(0, (lengths[i] - LONGEST + OVERLONG) / OVERLONG));

// The verdicts alone decide whether a group is mixed.
function dapo(rewards, lengths) {
  return isMixed(rewards) ? standardised(shape(rewards, lengths)) : rewards.map(() => 0);
}

function dapoWithoutSigma(rewards, lengths) {
  return isMixed(rewards) ? centred(shape(rewards, lengths)) : rewards.map(() => 0);
}

// An algorithm's advantages without ÷ σ, or with it; undefined where it has none of these
const SIGMAS = [[standardised, centred], [dapo, dapoWithoutSigma]];
export const withoutSigma = (advantages) => SIGMAS.find(([A]) => A === advantages)?.[1];
export const withSigma = (advantages) => SIGMAS.find(([, A]) => A === advantages)?.[0];

// A stand-in for PPO's critic where there is one group: it forecasts the share of right completions
// before every token.
function ppo(rewards, lengths) {
  return gae(rewards.map((R, i) => ({ reward: R, values: Array(lengths[i]).fill(mean(rewards)) })),
    0).map((row) => row.advantages);
}

// PPO's compute_advantages for the completions of a batch, {reward, values, logps, ref_logps}: a
// list of {advantages, returns}.
export function gae(rows, kl_coef, gae_lambda = LAMBDA) {
  const all = rows.map(({ reward, values, logps, ref_logps }) => {
    const advantages = [...values];
    for (let t = values.length - 1, next_value = 0, next_advantage = 0; t >= 0; t--) {
      // k1
      const token_reward = (t === values.length - 1 ? reward : 0) - (kl_coef &&
        kl_coef * (logps[t] - ref_logps[t]));
      next_advantage = advantages[t] = token_reward + next_value - values[t] +
        gae_lambda * next_advantage;
      next_value = values[t];
    }
    return { advantages, returns: advantages.map((A, t) => A + values[t]) };
  });
  const centre = mean(all.flatMap((row) => row.advantages));
  const spread = Math.sqrt(mean(all.flatMap((row) => row.advantages.map((A) =>
    (A - centre) ** 2))) + 1e-8);
  // whitening
  return all.map(({ advantages, returns }) =>
    ({ advantages: advantages.map((A) => (A - centre) / spread), returns }));
}

// What completion i's tokens are divided by, from the lengths of all completions of the optimizer
// batch.
export function divisorOf({ divisor }, lengths, i) {
  const B = lengths.length;
  return { length: B * lengths[i], limit: B * LONGEST, tokens: sum(lengths) }[divisor];
}

// Minus the derivative of a token's loss by its log-probability, without the divisor and the KL.
function push(A, ratio, { clip: [low, high] = [0, Infinity], cap = Infinity }) {
  const stopped = A > 0 ? ratio > high : A < 0 && ratio < low;
  return { weight: stopped ? 0 : A * (cap ? Math.min(ratio, cap) : 1), stopped };
}

// One completion's share of policy_loss, its derivative by the log-probability of each token, and
// the tokens that are stopped. logps, old_logps, ref_logps, advantages: one number for each token.
export function policy_loss({ logps, old_logps, ref_logps, advantages }, divisor, algorithm) {
  // PPO has its KL in the reward
  const { clip, whole, critic } = algorithm, kl_coef = critic ? 0 : algorithm.kl_coef;
  const log_ratios = logps.map((logp, t) => logp - old_logps[t]), mean_log_ratio = mean(log_ratios);
  let loss = 0, stopped = 0;
  const derivatives = logps.map((logp, t) => {
    const A = advantages[t], ratio = Math.exp(whole ? mean_log_ratio : log_ratios[t]),
      pushed = push(A, ratio, algorithm);
    const log_u = kl_coef ? ref_logps[t] - logp : 0; // u = pi_ref / pi; k3 = u - 1 - log u
    loss += clip ? Math.max(-A * ratio, -A * Math.min(Math.max(ratio, clip[0]), clip[1]))
      : -pushed.weight * logp;
    if (kl_coef) loss += kl_coef * (Math.exp(log_u) - 1 - log_u);
    stopped += pushed.stopped;
    return (-pushed.weight + (kl_coef && kl_coef * (1 - Math.exp(log_u)))) / divisor;
  });
  return { loss: loss / divisor, derivatives, stopped };
}

// The same of PPO's value_loss, by each token's value. divisor: all tokens of the optimizer batch.
export function value_loss({ values, old_values, returns }, divisor, { value_clip, value_coef }) {
  let loss = 0;
  const derivatives = values.map((V, t) => {
    const moved = V - old_values[t], clipped = old_values[t] +
      Math.min(Math.max(moved, -value_clip), value_clip);
    const error = (V - returns[t]) ** 2, clipped_error = (clipped - returns[t]) ** 2;
    loss += 0.5 * value_coef * Math.max(error, clipped_error) / divisor;
    return Math.abs(moved) > value_clip && clipped_error > error ? 0
      : value_coef * (V - returns[t]) / divisor;
  });
  return { loss, derivatives, stopped: 0 };
}

// The pushes on a group's tokens, as if the group were the whole optimizer batch and without the KL
// term: minus the derivative of the loss by each token's log-probability, where every ratio is
// `ratio`. -> [{advantage, tokens: [{weight, stopped}]}], one per completion
export function pushes(algorithm, rewards, lengths, ratio = 1) {
  const advantages = algorithm.advantages(rewards, lengths);
  return (algorithm.over_batch ? overBatch(advantages, algorithm) : advantages).map((A, i) => {
    const row = Array.isArray(A) ? A : Array(lengths[i]).fill(A),
      divisor = divisorOf(algorithm, lengths, i);
    return {
      advantage: mean(row),
      tokens: row.map((a) => {
        const { weight, stopped } = push(a, ratio, algorithm);
        return { weight: weight / divisor, stopped };
      }),
    };
  });
}
