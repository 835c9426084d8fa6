// Training as the scripts do it, in Web Workers where there are any. The page keeps the weights and the optimizer; a worker
// gets weights and completions and answers with completions, log-probabilities or a gradient.

import { ALGORITHMS, divisorOf, gae, isMixed, policy_loss, value_loss } from "./algorithms.js";
import { answer, drawProblem, stream, textOf, value } from "./arithmetic.js";
import { criticOf, tensors } from "./model.js";
import { complete, logpsBackward, logpsOf, passes, valuesBackward, valuesOf } from "./rollout.js";

export const SETTINGS = { // names and values of the scripts; prompts_per_step is 32 there
  prompts_per_step: 8, group_size: 8, epochs: 1, num_minibatches: 4, kl_coef: 0, learning_rate: 2e-4, warmup_steps: 10,
  max_grad_norm: 1, max_draws: 10, value_clip: 0.2, value_coef: 1, critic_learning_rate: 5e-4,
};
const PARTS = 4; // of a minibatch, whose gradients are added in order: results are the same for any number of workers
const SLICE = 20; // milliseconds of work in the page itself before it can answer the reader
const DENSE = 8, MOST_STATES = 32; // states that are kept: the newest, and of the older ones every 2nd, 4th, 8th, ...

export class Diverged extends Error {}

// ---------------------------------------------------------------------- the optimizer

export function clipGradient(gradient, max_grad_norm) { // in place -> its norm before
  const norm = Math.sqrt(gradient.reduce((sum, g) => sum + g * g, 0)), factor = max_grad_norm / (norm + 1e-6);
  if (factor < 1) for (let i = 0; i < gradient.length; i++) gradient[i] *= factor;
  return norm;
}

// A network's weights under AdamW without weight decay, with torch's defaults.
export class Learner {
  constructor(weights) {
    Object.assign(this, { weights: weights.slice(), m: weights.map(() => 0), v: weights.map(() => 0), updates: 0 });
  }

  update(gradient, learning_rate) {
    const { weights, m, v } = this, [beta1, beta2, epsilon] = [0.9, 0.999, 1e-8];
    this.updates++;
    const step = learning_rate / (1 - beta1 ** this.updates), root = Math.sqrt(1 - beta2 ** this.updates);
    for (let i = 0; i < weights.length; i++) {
      m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
      v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] ** 2;
      weights[i] -= step * m[i] / (Math.sqrt(v[i]) / root + epsilon);
    }
  }

  copy() {
    const { weights, m, v, updates } = this;
    return Object.assign(Object.create(Learner.prototype), { weights: weights.slice(), m: m.slice(), v: v.slice(), updates });
  }
}

// ---------------------------------------------------------------------- what workers do

const WORK = { // generators, which can be interrupted after a few milliseconds
  *sample({ weights, prompts, seeds }) { // -> rows
    const numbers = seeds.map(stream);
    let rows = [];
    for (rows of complete(tensors(weights), prompts, (i) => numbers[i]())) yield;
    return rows;
  },

  *score({ weights, rows }) { // -> of each row the log-probability of every token, or a critic's values
    const network = tensors(weights), scores = [];
    for (const pass of passes(network, rows)) {
      scores.push(...(network.head ? valuesOf(pass) : logpsOf(pass)));
      yield;
    }
    return scores;
  },

  *gradient({ weights, rows, config }) { // of the loss of a policy or a critic, summed over rows
    const network = tensors(weights), result = { gradient: new weights.constructor(weights.length), loss: 0, stopped: 0, logps: [] };
    for (const pass of passes(network, rows)) {
      const scores = network.head ? valuesOf(pass) : logpsOf(pass);
      const losses = pass.part.map(({ row: { logps: old_logps, values: old_values, divisor, ...row } }, r) => network.head
        ? value_loss({ values: scores[r], old_values, returns: row.returns }, divisor, config)
        : policy_loss({ logps: scores[r], old_logps, ref_logps: row.ref_logps, advantages: row.advantages }, divisor, config));
      const derivatives = losses.map((one) => one.derivatives);
      pass.reader.backward((network.head ? valuesBackward : logpsBackward)(pass, derivatives), tensors(result.gradient));
      for (const { loss, stopped } of losses) {
        result.loss += loss;
        result.stopped += stopped;
      }
      result.logps.push(...scores);
      yield;
    }
    return result;
  },
};

function serve() { // in a worker: answer every message
  onmessage = ({ data: { kind, job } }) => {
    const work = WORK[kind](job);
    for (;;) {
      const { done, value: result } = work.next();
      if (done) return postMessage(result, result.gradient ? [result.gradient.buffer] : []);
    }
  };
  postMessage("ready");
}

const nextTask = () => new Promise((resolve) => { // lets the browser handle what has happened in the meantime
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); resolve(); };
  port2.postMessage(0);
});

export class Pool {
  // Workers that run `source`, the text of these modules. Where the browser refuses them the pool has none, and the work is
  // done here, in slices.
  static async open(size, source) {
    const pool = Object.assign(new Pool(), { workers: [], idle: [], waiting: [] });
    const url = URL.createObjectURL(new Blob([`${source}\n;serve();`], { type: "text/javascript" }));
    try {
      for (let i = 0; i < size; i++) pool.workers.push(new Worker(url));
      await Promise.all(pool.workers.map((worker) => new Promise((resolve, reject) => Object.assign(worker, { onmessage: resolve, onerror: reject }))));
    } catch {
      pool.close();
    }
    URL.revokeObjectURL(url);
    pool.idle.push(...pool.workers);
    return pool;
  }

  close() { for (const worker of this.workers.splice(0)) worker.terminate(); }

  // The results of all jobs, in order. Whichever worker is free does the next job.
  async run(kind, jobs) {
    if (this.workers.length) return Promise.all(jobs.map((job) => new Promise((resolve, reject) => {
      this.waiting.push({ kind, job, resolve, reject });
      this.startNext();
    })));
    const results = [];
    for (const job of jobs) {
      const work = WORK[kind](job);
      for (let started = performance.now(), next = work.next(); ; next = work.next()) {
        if (next.done) { results.push(next.value); break; }
        if (performance.now() - started > SLICE) { await nextTask(); started = performance.now(); }
      }
    }
    return results;
  }

  startNext() {
    while (this.idle.length && this.waiting.length) {
      const worker = this.idle.pop(), { kind, job, resolve, reject } = this.waiting.shift();
      const end = (finish, result) => { this.idle.push(worker); this.startNext(); finish(result); };
      worker.onmessage = ({ data }) => end(resolve, data);
      worker.onerror = ({ message }) => end(reject, new Error(message));
      worker.postMessage({ kind, job });
    }
  }

  // The same over rows or prompts in as many shares as there are workers: each result is that of a row, whatever the shares.
  async share(kind, job, ...lists) {
    const size = Math.ceil(lists[0][1].length / Math.max(1, this.workers.length)), jobs = [];
    for (let from = 0; from < lists[0][1].length; from += size)
      jobs.push({ ...job, ...Object.fromEntries(lists.map(([name, list]) => [name, list.slice(from, from + size)])) });
    return (await this.run(kind, jobs)).flat();
  }
}

// ---------------------------------------------------------------------- a training run

const mean_of = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;
const tokensOf = (rows) => rows.reduce((sum, row) => sum + row.ids.length, 0);

export class Trainer {
  // algorithm: one of ALGORITHMS with whatever settings differ, e.g. {...ALGORITHMS.GRPO, kl_coef: 0}
  constructor({ weights, algorithm, pool, seed = 0, draw = drawProblem }) {
    const { advantages, ...config } = { ...SETTINGS, ...algorithm }; // a function cannot be sent to a worker
    Object.assign(this, { config, compute_advantages: advantages, pool, seed, draw, reference: weights, steps: 0, stride: 1 });
    this.policy = new Learner(weights);
    this.critic = config.critic ? new Learner(criticOf(weights)) : null;
    this.states = [this.copy()];
  }

  // P new problems with G completions each: the rows of a group are contiguous.
  async collect() {
    const { prompts_per_step: P, group_size: G } = this.config;
    const problems = Array.from({ length: P }, () => this.draw(this.random));
    const prompts = problems.flatMap((problem) => Array(G).fill(problem + "?")), seeds = prompts.map(() => this.random() * 2 ** 32);
    const rows = await this.pool.share("sample", { weights: this.policy.weights }, ["prompts", prompts], ["seeds", seeds]);
    rows.forEach((row, i) => { row.reward = Number(answer(textOf(row.ids)) === value(problems[Math.floor(i / G)])); });
    return rows;
  }

  groups(rows) {
    const G = this.config.group_size;
    return Array.from({ length: rows.length / G }, (_, g) => rows.slice(g * G, (g + 1) * G));
  }

  groups_to_keep(rows) {
    const groups = this.groups(rows), { dynamic_sampling, prompts_per_step } = this.config;
    return groups.filter((group) => !dynamic_sampling || isMixed(group.map((row) => row.reward))).slice(0, prompts_per_step);
  }

  // Give every row its advantages, one for each token; with a KL its ref_logps; with a critic its values and returns.
  async addAdvantages(rows) {
    const { pool, config: { kl_coef }, critic, compute_advantages, reference } = this, score = (weights) => pool.share("score", { weights }, ["rows", rows]);
    if (kl_coef) (await score(reference)).forEach((ref_logps, i) => { rows[i].ref_logps = ref_logps; });
    if (critic) {
      (await score(critic.weights)).forEach((values, i) => { rows[i].values = values; });
      return gae(rows, kl_coef).forEach((columns, i) => Object.assign(rows[i], columns));
    }
    for (const group of this.groups(rows)) {
      const advantages = compute_advantages(group.map((row) => row.reward), group.map((row) => row.ids.length));
      group.forEach((row, i) => { row.advantages = row.ids.map(() => advantages[i]); });
    }
  }

  shuffle(n) { // a random order
    const order = Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) {
      const j = Math.floor(this.random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  *minibatches(rows) { // equal ones, in a new order for every epoch. In a minibatch the rows of a prompt are neighbours
    const { epochs, num_minibatches } = this.config, M = Math.min(rows.length, num_minibatches);
    for (let epoch = 0; epoch < epochs && M; epoch++) {
      const order = this.shuffle(rows.length), size = Math.floor(rows.length / M), larger = rows.length % M;
      for (let b = 0, at = 0; b < M; b++) yield order.slice(at, (at += size + (b < larger))).sort((i, j) => i - j).map((i) => rows[i]);
    }
  }

  // The gradient of the loss of a minibatch for a network: {gradient, loss, stopped, logps}.
  async gradient({ weights }, minibatch, divisor = (i) => divisorOf(this.config, minibatch.map((row) => row.ids.length), i)) {
    const rows = minibatch.map((row, i) => ({ ...row, divisor: divisor(i) })), size = Math.ceil(rows.length / PARTS), jobs = [];
    for (let at = 0; at < rows.length; at += size) jobs.push({ weights, rows: rows.slice(at, at + size), config: this.config });
    const [first, ...others] = await this.pool.run("gradient", jobs);
    for (const { gradient, loss, stopped, logps } of others) {
      for (let i = 0; i < gradient.length; i++) first.gradient[i] += gradient[i];
      first.loss += loss;
      first.stopped += stopped;
      first.logps.push(...logps);
    }
    return first;
  }

  // One optimizer step of a network.
  async update(network, minibatch, learning_rate) {
    const result = await this.gradient(network, minibatch), grad_norm = clipGradient(result.gradient, this.config.max_grad_norm);
    if (!Number.isFinite(grad_norm)) throw new Diverged(`the gradient is not finite in step ${this.steps + 1}`);
    network.update(result.gradient, learning_rate * Math.min(1, (this.steps + 1) / (this.config.warmup_steps + 1)));
    return { ...result, grad_norm };
  }

  // One training step. -> {drawn, rows, metrics}: all completions, those that were trained on, and the names of toy_env/metrics.py.
  // Throws Diverged and leaves everything as it was before the step.
  async step() {
    const { prompts_per_step: P, group_size: G, max_draws, learning_rate, critic_learning_rate, kl_coef } = this.config;
    const before = this.copy(), updates = [];
    try {
      this.random = stream(this.seed * 1_000_003 + this.steps + 1);
      // 1. Sample and verify: G completions for each of P prompts; with dynamic sampling of more, until P groups are mixed
      const drawn = await this.collect();
      while (this.groups_to_keep(drawn).length < P && drawn.length < max_draws * P * G) drawn.push(...(await this.collect()));
      const rows = this.groups_to_keep(drawn).flat();
      // 2. Advantages
      await this.addAdvantages(rows);
      // 3. Update: one optimizer step for each minibatch
      for (const minibatch of this.minibatches(rows)) {
        const [update] = await Promise.all([this.update(this.policy, minibatch, learning_rate),
          this.critic && this.update(this.critic, minibatch, critic_learning_rate)]);
        const kls = minibatch.flatMap(({ ref_logps }, i) => (kl_coef ? ref_logps.map((ref, t) => ref - update.logps[i][t]) : []));
        updates.push({ loss: update.loss, grad_norm: update.grad_norm, clipped: update.stopped / tokensOf(minibatch),
          kl: kl_coef ? mean_of(kls.map((log_u) => Math.exp(log_u) - 1 - log_u)) : null });
      }
      // 4. Log
      this.steps++;
      this.keep();
      const metrics = { step: this.steps, sampled: drawn.length, accuracy: mean_of(drawn.map((row) => row.reward)),
        silent: mean_of(this.groups(drawn).map((group) => Number(!isMixed(group.map((row) => row.reward))))),
        length: tokensOf(drawn) / drawn.length, truncated: mean_of(drawn.map((row) => Number(row.truncated))),
        entropy: drawn.flatMap((row) => row.entropies).reduce((a, b) => a + b, 0) / tokensOf(drawn) };
      for (const name of ["loss", "grad_norm", "clipped", "kl"]) metrics[name] = updates.length ? mean_of(updates.map((update) => update[name])) : 0;
      return { drawn, rows, metrics };
    } catch (error) {
      this.restore(before);
      throw error;
    }
  }

  // What training changes, as a copy that `restore` can bring back.
  copy() { return { steps: this.steps, policy: this.policy.copy(), critic: this.critic?.copy() ?? null }; }

  restore({ steps, policy, critic }) { Object.assign(this, { steps, policy: policy.copy(), critic: critic?.copy() ?? null }); }

  keep() {
    this.states.push(this.copy());
    if (this.states.length > MOST_STATES) this.stride *= 2;
    this.states = this.states.filter(({ steps }) => steps > this.steps - DENSE || steps % this.stride === 0);
  }

  // Go back to the newest kept state of at most so many steps; `trainer.takeBack(trainer.steps - 1)` undoes the last step.
  takeBack(steps) {
    this.states = this.states.filter((state, i) => i === 0 || state.steps <= steps);
    this.restore(this.states.at(-1));
  }
}
