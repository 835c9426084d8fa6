// Training as the scripts do it, in Web Workers where there are any. The page keeps the weights and
// the optimizer; a worker is sent weights and completions and answers with completions, scores or a
// gradient.

import { divisorOf, gae, isMixed, mean, overBatch, policy_loss, sum, value_loss }
  from "./algorithms.js";
import { answer, drawProblem, stream, textOf, value } from "./arithmetic.js";
import { criticOf, tensors } from "./model.js";
import { complete, passes, scoresBackward, scoresOf } from "./rollout.js";

// names and values of the scripts, but for prompts_per_step, which is 32 there
export const SETTINGS = {
  prompts_per_step: 8, group_size: 8, epochs: 1, num_minibatches: 4, kl_coef: 0,
  learning_rate: 2e-4, warmup_steps: 10,
  max_grad_norm: 1, max_draws: 10, value_clip: 0.2, value_coef: 1, critic_learning_rate: 5e-4,
  mistake: "", // the name of a patch in lessons/clinic, of those that MISTAKES lists
};
// of a minibatch. Their gradients are added in order, so any number of workers gives the same
// weights
const PARTS = 4;
const MOST_HERE = 16; // rows that a page without workers reads at once
// milliseconds of work that a page without workers does before it looks at the reader's input
const SLICE = 8;

export class Diverged extends Error {}

// ---------------------------------------------------------------------- the optimizer

export class Learner { // a network's weights, and AdamW with torch's defaults and no weight decay
  constructor({ weights, m = weights.map(() => 0), v = m, updates = 0 }) {
    Object.assign(this, { weights: weights.slice(), m: m.slice(), v: v.slice(), updates });
  }

  update(gradient, learning_rate) {
    const { weights, m, v } = this, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
    this.updates++;
    const size = learning_rate / (1 - beta1 ** this.updates),
      root = Math.sqrt(1 - beta2 ** this.updates);
    for (let i = 0; i < weights.length; i++) {
      m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
      v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] ** 2;
      weights[i] -= size * m[i] / (Math.sqrt(v[i]) / root + epsilon);
    }
  }
}

function clip_grad_norm(gradient, max_grad_norm) { // in place -> the norm before
  // loops, since a function called for each of 152,192 numbers leaves 20 MB of garbage a step
  let squares = 0;
  for (let i = 0; i < gradient.length; i++) squares += gradient[i] ** 2;
  const norm = Math.sqrt(squares), factor = max_grad_norm / (norm + 1e-6);
  if (factor < 1) for (let i = 0; i < gradient.length; i++) gradient[i] *= factor;
  return norm;
}

// ---------------------------------------------------------------------- what is done in workers

const WORK = { // generators, because a page without workers interrupts them
  *ready() {},

  *sample({ weights, prompts, seeds }) { // -> rows
    const numbers = seeds.map(stream);
    let rows = [];
    for (rows of complete(tensors(weights), prompts, (i) => numbers[i]())) yield;
    return rows;
  },

  // -> for each row the log-probability of every token, or a critic's values
  *score({ weights, rows }) {
    const scores = [];
    for (const pass of passes(tensors(weights), rows)) {
      scores.push(...scoresOf(pass));
      yield;
    }
    return scores;
  },

  *gradient({ weights, rows, config }) { // of a policy's loss, or a critic's, summed over rows
    const network = tensors(weights), result = { gradient: new weights.constructor(weights.length),
      loss: 0, stopped: 0, scores: [] };
    for (const pass of passes(network, rows)) {
      const scores = scoresOf(pass), losses = pass.part.map(({ row }, r) => (network.head
        ? value_loss({ ...row, values: scores[r], old_values: row.values }, row.divisor, config)
        : policy_loss({ ...row, logps: scores[r], old_logps: row.logps }, row.divisor, config)));
      pass.reader.backward(scoresBackward(pass, losses.map((loss) => loss.derivatives)),
        tensors(result.gradient));
      for (const loss of losses) addResults(result, { ...loss, scores: [] });
      result.scores.push(...scores);
      yield;
    }
    return result;
  },
};

function addResults(total, { gradient = [], loss, stopped, scores }) {
  for (let i = 0; i < gradient.length; i++) total.gradient[i] += gradient[i];
  total.scores.push(...scores);
  return Object.assign(total, { loss: total.loss + loss, stopped: total.stopped + stopped });
}

function serve() { // in a worker: answer every message
  onmessage = ({ data: { kind, job } }) => {
    let work = WORK[kind](job), next;
    do next = work.next(); while (!next.done);
    postMessage(next.value, next.value?.gradient ? [next.value.gradient.buffer] : []);
  };
}

const ask = (worker) => (kind, job) => new Promise((resolve, reject) => {
  Object.assign(worker, { onmessage: ({ data }) => resolve(data),
    onerror: ({ message }) => reject(new Error(message)) });
  worker.postMessage({ kind, job });
});

async function here(kind, job) { // in the page itself, in slices
  const work = WORK[kind](job);
  for (let until = performance.now() + SLICE; ;) {
    const { done, value: result } = work.next();
    if (done) return result;
    if (performance.now() < until) continue;
    // until what has happened in the meantime is dealt with
    await new Promise((resolve) => setTimeout(resolve));
    until = performance.now() + SLICE;
  }
}

export class Pool {
  constructor() { Object.assign(this, { workers: [], doers: [here], ends: [] }); }

  // Workers that run `source`, the text of these modules. If the browser refuses them, the pool
  // does the work in the page.
  static async open(size, source) {
    const pool = new Pool(), url = URL.createObjectURL(new Blob([`${source}\n;serve();`],
      { type: "text/javascript" }));
    try {
      for (let i = 0; i < size; i++) pool.workers.push(new Worker(url));
      await Promise.all(pool.workers.map((worker) => ask(worker)("ready")));
      if (size) pool.doers = pool.workers.map(ask);
    } catch {
      pool.close();
    }
    URL.revokeObjectURL(url);
    return pool;
  }

  // and leaves what is not done unanswered
  close() { for (const worker of this.workers.splice(0)) worker.terminate(); }

  // -> the results, in order. The workers take turns; each does its jobs one after another
  run(kind, jobs) {
    return Promise.all(jobs.map((job, i) => {
      const w = i % this.doers.length, end = (this.ends[w] ?? Promise.resolve()).then(() =>
        this.doers[w](kind, job));
      this.ends[w] = end.catch(() => {});
      return end;
    }));
  }

  // lists, cut into one share for each worker -> one list, the same however it is cut
  async share(kind, weights, lists) {
    const total = Object.values(lists)[0].length, jobs = [];
    const size = this.workers.length ? Math.ceil(total / this.workers.length) : MOST_HERE;
    for (let at = 0; at < total; at += size)
      jobs.push({ weights, ...Object.fromEntries(Object.entries(lists).map(([name, list]) => [name,
        list.slice(at, at + size)])) });
    return (await this.run(kind, jobs)).flat();
  }
}

// ---------------------------------------------------------------------- a training run

const lengthsOf = (rows) => rows.map((row) => row.ids.length);
const rewardsOf = (rows) => rows.map((row) => row.reward);

export class Trainer {
  // algorithm: one of ALGORITHMS, with other settings if any, such as {...ALGORITHMS.GRPO, kl_coef:
  // 0}
  constructor({ weights, algorithm, pool, seed = 0, draw = drawProblem }) {
    // a function cannot be sent to a worker
    const { advantages, ...config } = { ...SETTINGS, ...algorithm };
    if (config.mistake === "kl_sign") config.kl_coef *= -1;
    Object.assign(this, { config, compute_advantages: advantages, pool, seed, draw,
      reference: weights, steps: 0 });
    this.policy = new Learner({ weights });
    this.critic = config.critic && new Learner({ weights: criticOf(weights) });
  }

  sampler({ weights }) {
    return this.config.mistake === "stale_sampler" ? this.reference : weights;
  }

  reward(text, right) {
    const isLax = this.config.mistake === "verifier_lax";
    return Number(isLax ? text.includes(right) : answer(text) === right);
  }

  // G completions of each of P new problems -> P groups, lists of G rows. own: a problem that comes
  // first, with the seeds of its completions, {problem, seeds}
  async collect(P = this.config.prompts_per_step, own = null) {
    const { group_size: G } = this.config, problems = own ? [own.problem] : [];
    while (problems.length < P) problems.push(this.draw(this.random));
    const prompts = problems.flatMap((problem) => Array(G).fill(problem + "?"));
    const seeds = prompts.map((_, i) => own?.seeds[i] ?? this.random() * 2 ** 32);
    const rows = await this.pool.share("sample", this.sampler(this.policy), { prompts, seeds });
    this.refuse(sum(rows.flatMap((row) => row.logps)), "the policy's logits are");
    return problems.map((problem, p) => rows.slice(p * G, (p + 1) * G).map((row) =>
      ({ ...row, reward: this.reward(textOf(row.ids), value(problem)) })));
  }

  // Give every row its advantages, one for each token; with a KL its ref_logps; with a critic its
  // values and returns.
  async addAdvantages(groups) {
    const { critic, pool, reference, config: { kl_coef } } = this, rows = groups.flat();
    const add = (name, columns) => columns.forEach((column, i) => { rows[i][name] = column; });
    if (kl_coef) add("ref_logps", await pool.share("score", reference, { rows }));
    if (critic) {
      add("values", await pool.share("score", critic.weights, { rows }));
      return gae(rows, kl_coef).forEach((columns, i) => Object.assign(rows[i], columns));
    }
    const advantages = overBatch(groups.flatMap((group) =>
      this.compute_advantages(rewardsOf(group), lengthsOf(group))), this.config);
    add("advantages", rows.map((row, i) => row.ids.map(() => advantages[i])));
  }

  refuse(number, what) {
    if (Number.isFinite(number)) return;
    throw new Diverged(`${what} not finite in step ${this.steps + 1}`);
  }

  shuffle(n) { // the numbers below n in a random order
    const order = [];
    for (let i = 0; i < n; i++) order.splice(Math.floor(this.random() * (i + 1)), 0, i);
    return order;
  }

  // equal ones, in a new order for every epoch; within one the rows of a prompt are neighbours
  *minibatches(rows) {
    const { epochs, num_minibatches } = this.config, M = Math.min(rows.length, num_minibatches);
    for (let epoch = 0; epoch < epochs && M; epoch++) {
      const order = this.shuffle(rows.length), size = Math.floor(rows.length / M),
        larger = rows.length % M;
      for (let b = 0, at = 0; b < M; b++) {
        const part = order.slice(at, (at += size + (b < larger)));
        yield part.sort((i, j) => i - j).map((i) => rows[i]);
      }
    }
  }

  // of a network's loss -> {gradient, loss, stopped, scores}
  async gradient({ weights }, minibatch) {
    const lengths = lengthsOf(minibatch), tokens = sum(lengths),
      parts = Array.from({ length: PARTS }, () => []);
    let before = 0; // tokens of the rows before this one: every part gets about as many
    minibatch.forEach((row, i) => {
      parts[Math.floor(PARTS * before / tokens)].push({ ...row,
        divisor: divisorOf(this.config, lengths, i) });
      before += lengths[i];
    });
    const jobs = parts.filter((rows) => rows.length).map((rows) =>
      ({ weights, rows, config: this.config }));
    return (await this.pool.run("gradient", jobs)).reduce(addResults);
  }

  async update(network, minibatch, learning_rate) { // one optimizer step -> what it showed
    const { gradient, loss, stopped, scores } = await this.gradient(network, minibatch),
      { max_grad_norm, warmup_steps } = this.config;
    const grad_norm = clip_grad_norm(gradient, max_grad_norm), tokens = sum(lengthsOf(minibatch));
    this.refuse(grad_norm, "the gradient is");
    network.update(gradient, learning_rate * Math.min(1, (this.steps + 1) / (warmup_steps + 1)));
    const log_u = minibatch.flatMap(({ ref_logps = [] }, i) =>
      ref_logps.map((ref, t) => ref - scores[i][t]));
    return { loss, grad_norm, clipped: stopped / tokens,
      kl: sum(log_u.map((x) => Math.exp(x) - 1 - x)) / tokens };
  }

  // Sample and verify a step's batch: G completions for each of P prompts; with dynamic sampling of
  // more, until P groups are mixed. own: as in `collect`
  async prepare(own) {
    const { prompts_per_step: P, max_draws, dynamic_sampling, mistake } = this.config;
    this.random = stream(this.seed * 1_000_003 + (mistake === "same_prompts" ? 0 : this.steps + 1));
    let drawn = await this.collect(P, own), groups;
    const isKept = (group) => !dynamic_sampling || isMixed(rewardsOf(group));
    while ((groups = drawn.filter(isKept).slice(0, P)).length < P && drawn.length < max_draws * P)
      drawn = [...drawn, ...await this.collect()];
    return (this.batch = { drawn, groups });
  }

  // Train on the batch -> numbers as in toy_env/metrics.py. If the training diverges it throws
  // Diverged, and everything is as before.
  async learn() {
    const { batch: { drawn, groups }, config: { learning_rate, critic_learning_rate } } = this;
    const before = this.state(), updates = [];
    try {
      await this.addAdvantages(groups);
      for (const minibatch of this.minibatches(groups.flat())) { // one optimizer step for each
        const update = this.update(this.policy, minibatch, learning_rate);
        const critic = this.critic && this.update(this.critic, minibatch, critic_learning_rate);
        await Promise.all([update, critic]);
        updates.push(await update);
      }
      this.steps++;
      const rows = drawn.flat(), lengths = lengthsOf(rows);
      const metrics = {
        step: this.steps, accuracy: mean(rewardsOf(rows)), length: mean(lengths),
        silent: mean(drawn.map((group) => Number(!isMixed(rewardsOf(group))))),
        truncated: mean(rows.map((row) => Number(row.truncated))),
        entropy: sum(rows.flatMap((row) => row.entropies)) / sum(lengths),
      };
      for (const name in updates[0]) metrics[name] = mean(updates.map((update) => update[name]));
      return metrics;
    } catch (error) {
      this.restore(before);
      throw error;
    }
  }

  async step(own) { return { ...await this.prepare(own), metrics: await this.learn() }; }

  state() { // what a step changes, as a copy
    const { steps, policy, critic } = this;
    return { steps, policy: new Learner(policy), critic: critic && new Learner(critic) };
  }

  restore({ steps, policy, critic }) {
    this.steps = steps;
    this.policy = new Learner(policy);
    this.critic = critic && new Learner(critic);
  }
}
