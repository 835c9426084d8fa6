// What each script's compute_advantages, policy_loss and value_loss do, as numbers: advantages, and
// the derivatives of the losses. Tests compare them with the scripts' autograd.

const sum = (list) => list.reduce((a, b) => a + b, 0);
const mean = (list) => sum(list) / list.length;
const deviation = (list) => Math.sqrt(mean(list.map((x) => (x - mean(list)) ** 2)));
const rewardsOf = (rows) => rows.map((row) => row.reward);
const lengthsOf = (rows) => rows.map((row) => row.ids.length);
const isMixed = (group) => group.some((row) => row.reward !== group[0].reward);
const GAE_LAMBDA = 0.95, OVERLONG_BUFFER = 8; // tokens before the limit at which a penalty begins

// A token gets A · ratio / divisor. The fields of an algorithm:
//   overlong  rewards are 1 and -1, less a penalty for overlong completions
//   baseline  taken from a reward: the mean of its "group", or of the "others"; or by a "critic"
//   sigma     whether that is divided by the group's standard deviation; undefined: never
//   over      what else it is divided by: the group's "mean", the "batch"'s standard deviation
//   divisor   "length": G times the completion's; "limit": G times the longest; or all "tokens"
//   clip      a positive A is stopped where the ratio is above the second number, a negative one
//             where it is below the first
//   cap       the largest ratio that counts; 0 for an algorithm without a ratio
//   whole     the ratio is that of the whole completion, the geometric mean of its tokens'
//   kl_coef   weight of the KL to the reference policy: k3 in the loss, or k1 in PPO's rewards
//   dynamic_sampling  silent groups are replaced by others
const NEAR = { clip: [0.8, 1.2], kl_coef: 0.04 };
const ALGORITHMS = {
  REINFORCE: { divisor: "limit", cap: 0, num_minibatches: 1 },
  PPO: { ...NEAR, baseline: "critic", divisor: "tokens" },
  GRPO: { ...NEAR, baseline: "group", sigma: true, divisor: "length" },
  "Dr. GRPO": { ...NEAR, baseline: "group", sigma: false, divisor: "limit" },
  DAPO: { baseline: "group", sigma: true, divisor: "tokens", clip: [0.8, 1.28], overlong: true,
    dynamic_sampling: true },
  RLOO: { ...NEAR, baseline: "others", divisor: "limit" },
  MaxRL: { ...NEAR, baseline: "group", over: "mean", divisor: "limit" },
  "Batch sigma": { ...NEAR, baseline: "group", over: "batch", divisor: "limit" },
  GSPO: { baseline: "group", sigma: true, divisor: "length", clip: [0.991, 1.012], whole: true,
    kl_coef: 0.04 },
  CISPO: { baseline: "group", sigma: true, divisor: "tokens", cap: 5, overlong: true,
    dynamic_sampling: true },
};

function advantagesOfGroup({ baseline, sigma, over, overlong }, group) {
  const verdicts = rewardsOf(group), n = group.length;
  if (!baseline) return verdicts;
  if (!isMixed(group)) return verdicts.map(() => 0);
  if (baseline === "others") return verdicts.map((R) => R - (sum(verdicts) - R) / (n - 1));
  const penalty = ({ ids }) => Math.max(0, 1 + (ids.length - LONGEST) / OVERLONG_BUFFER);
  const rewards = overlong ? group.map((row) => 2 * row.reward - 1 - penalty(row)) : verdicts;
  const divisor = sigma ? deviation(rewards) : over === "mean" ? mean(rewards) : 1;
  return rewards.map((R) => (R - mean(rewards)) / divisor);
}

// For each completion of a batch of groups {advantages}, one for each token
function compute_advantages(algorithm, groups) {
  if (algorithm.baseline === "critic") return gae(groups.flat(), algorithm.kl_coef);
  const all = groups.flatMap((group) => advantagesOfGroup(algorithm, group));
  const divisor = algorithm.over === "batch" ? Math.max(deviation(all), 1e-4) : 1;
  return groups.flat().map(({ ids }, i) => ({ advantages: ids.map(() => all[i] / divisor) }));
}

// PPO's compute_advantages for the completions of a batch -> a list of {advantages, returns}
function gae(rows, kl_coef) {
  const all = rows.map(({ reward, values, logps, ref_logps }) => {
    const advantages = [...values];
    let next_value = 0, next_advantage = 0;
    for (let t = values.length - 1; t >= 0; t--) {
      const k1 = kl_coef && logps[t] - ref_logps[t];
      const token_reward = (t === values.length - 1 ? reward : 0) - kl_coef * k1;
      next_advantage = token_reward + next_value - values[t] + GAE_LAMBDA * next_advantage;
      next_value = values[t];
      advantages[t] = next_advantage;
    }
    return { advantages, returns: advantages.map((A, t) => A + values[t]) };
  });
  const tokens = all.flatMap((row) => row.advantages), centre = mean(tokens);
  const spread = Math.sqrt(mean(tokens.map((A) => (A - centre) ** 2)) + 1e-8); // whitening
  return all.map(({ advantages, returns }) =>
    ({ advantages: advantages.map((A) => (A - centre) / spread), returns }));
}

// What completion i's tokens are divided by, from all completions of the optimizer batch.
function divisorOf({ divisor }, rows, i) {
  const B = rows.length;
  if (divisor === "tokens") return sum(lengthsOf(rows));
  return B * (divisor === "limit" ? LONGEST : rows[i].ids.length);
}

// Minus the derivative of a token's loss by its log-probability, without the divisor and the KL.
function push(A, ratio, { clip: [low, high] = [0, Infinity], cap = Infinity }) {
  const stopped = A > 0 ? ratio > high : A < 0 && ratio < low;
  return stopped ? 0 : A * (cap ? Math.min(ratio, cap) : 1);
}

// The derivatives of a completion's share of policy_loss by its tokens' log-probabilities
function policyLossBackward(row, logps, algorithm) {
  const { logps: old_logps, ref_logps, advantages, divisor } = row;
  // PPO has its KL in the reward
  const kl_coef = algorithm.baseline === "critic" ? 0 : algorithm.kl_coef;
  const log_ratios = logps.map((logp, t) => logp - old_logps[t]), mean_log_ratio = mean(log_ratios);
  return logps.map((logp, t) => {
    const ratio = Math.exp(algorithm.whole ? mean_log_ratio : log_ratios[t]);
    // of k3 = u - 1 - log u, where u = pi_ref / pi
    const kl = kl_coef && kl_coef * (1 - Math.exp(ref_logps[t] - logp));
    return (kl - push(advantages[t], ratio, algorithm)) / divisor;
  });
}

// The same of PPO's value_loss, by each token's value
function valueLossBackward(row, values, { value_clip }) {
  const { values: old_values, returns, divisor } = row;
  return values.map((V, t) => {
    const moved = V - old_values[t];
    const clipped = old_values[t] + Math.min(Math.max(moved, -value_clip), value_clip);
    const isWorse = (clipped - returns[t]) ** 2 > (V - returns[t]) ** 2;
    return Math.abs(moved) > value_clip && isWorse ? 0 : (V - returns[t]) / divisor;
  });
}

// The pushes on a group's tokens, as if the group were the whole optimizer batch and without the KL
// term: minus the derivative of the loss by each token's log-probability, where every ratio is
// `ratio`. rows: for each completion {advantages}. -> for each {advantage, tokens}
function pushes(algorithm, group, ratio = 1, rows = forecast(algorithm, group)) {
  return rows.map(({ advantages }, i) => ({ advantage: mean(advantages),
    tokens: advantages.map((A) => push(A, ratio, algorithm) / divisorOf(algorithm, group, i)) }));
}

// The advantages of a group that is alone. A stand-in for PPO's critic forecasts the share of right
// completions before every token.
function forecast(algorithm, group) {
  const share = mean(rewardsOf(group));
  const rows = group.map((row) => ({ ...row, values: row.ids.map(() => share) }));
  return compute_advantages({ ...algorithm, kl_coef: 0 }, [rows]);
}
