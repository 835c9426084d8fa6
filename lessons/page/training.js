// Training as the scripts do it, in Web Workers where there are any. The page keeps the weights and
// the optimizer; a worker is sent weights and rows and answers with rows, scores or a gradient.

// names and values of the scripts, but for prompts_per_step, which is 32 there
const SETTINGS = {
  prompts_per_step: 8, group_size: 8, epochs: 1, num_minibatches: 4, kl_coef: 0,
  learning_rate: 2e-4, warmup_steps: 10, max_grad_norm: 1, max_draws: 10,
  value_clip: 0.2, critic_learning_rate: 5e-4,
  mistake: "", // the name of a patch in lessons/clinic, of those that the page offers
};
const PARTS = 4; // of a minibatch, added in order: any number of workers gives the same weights
const MOST_HERE = 16; // rows of a job in a page without workers, which does not listen meanwhile
class Diverged extends Error {}

// A network's weights, and what AdamW remembers of them
const learner = (weights) =>
  ({ weights, m: weights.map(() => 0), v: weights.map(() => 0), updates: 0 });

function adamw(network, gradient, learning_rate) { // torch's defaults, but no weight decay
  const { m, v } = network, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  const weights = network.weights = network.weights.slice(); // a new array: workers get it
  network.updates++;
  const size = learning_rate / (1 - beta1 ** network.updates);
  const root = Math.sqrt(1 - beta2 ** network.updates);
  for (let i = 0; i < weights.length; i++) {
    m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
    v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] ** 2;
    weights[i] -= size * m[i] / (Math.sqrt(v[i]) / root + epsilon);
  }
}

// In place -> the norm before. In loops: a function for each number leaves 20 MB of garbage a step
function clip_grad_norm(gradient, max_grad_norm) {
  let squares = 0;
  for (let i = 0; i < gradient.length; i++) squares += gradient[i] ** 2;
  const norm = Math.sqrt(squares), factor = max_grad_norm / (norm + 1e-6);
  if (factor < 1) for (let i = 0; i < gradient.length; i++) gradient[i] *= factor;
  return norm;
}

const WORK = { // by a network, on rows
  ready() {},
  sample(network, rows) {
    return complete(network, rows.map((row) => row.prompt), rows.map((row) => stream(row.seed)));
  },
  score(network, rows) { return score(network, rows); },
  gradient(network, rows, config) { // of a policy's loss, or a critic's, summed over rows
    const gradient = held.weights.map(() => 0);
    const lossBackward = network.head ? valueLossBackward : policyLossBackward;
    score(network, rows, (row, scores) => lossBackward(row, scores, config), tensors(gradient));
    return gradient;
  },
};

let held = {}; // the weights that were sent last, and their network
function work({ kind, weights = held.weights, rows, config }) {
  if (weights !== held.weights) held = { weights, network: tensors(weights) };
  return WORK[kind](held.network, rows, config);
}

if (!globalThis.document) // in a worker: answer every message; a gradient is not copied
  onmessage = ({ data }) => {
    const answer = work(data);
    postMessage(answer, answer?.buffer ? [answer.buffer] : []);
  };

function startWorker(url) { // a worker, which does one job after another
  const worker = new Worker(url), waiting = [];
  let sent; // the weights that it holds
  worker.onmessage = ({ data }) => waiting.shift().resolve(data);
  worker.onerror = ({ message }) => waiting.shift().reject(new Error(message));
  worker.ask = (job) => new Promise((resolve, reject) => {
    waiting.push({ resolve, reject });
    worker.postMessage({ ...job, weights: job.weights === sent ? undefined : job.weights });
    sent = job.weights;
  });
  return worker;
}

class Pool {
  workers = [];

  // Workers that run `source`, the text of these modules; none if the browser refuses them
  static async open(size, source) {
    const pool = new Pool();
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    try {
      for (let i = 0; i < size; i++) pool.workers.push(startWorker(url));
      await Promise.all(pool.workers.map((worker) => worker.ask({ kind: "ready" })));
    } catch {
      pool.close();
    }
    URL.revokeObjectURL(url);
    return pool;
  }

  close() { for (const worker of this.workers.splice(0)) worker.terminate(); }

  // shares: lists of rows, by number -> the results in this order, of the workers in turns; without
  // any, of the page between its events
  run(kind, weights, shares, config) {
    const { workers } = this, pause = () => new Promise((resolve) => setTimeout(resolve));
    const here = (job) => pause().then(() => work(job));
    return Promise.all(Object.values(shares).map((rows, i) =>
      (workers[i % workers.length]?.ask ?? here)({ kind, weights, rows, config })));
  }

  // rows, cut into one share for each worker -> one list, the same however it is cut
  async share(kind, weights, rows) {
    const { length } = this.workers, size = length ? Math.ceil(rows.length / length) : MOST_HERE;
    const shares = Object.groupBy(rows, (_, i) => Math.floor(i / size));
    return (await this.run(kind, weights, shares)).flat();
  }
}

class Trainer {
  // algorithm: one of ALGORITHMS, with other settings if any
  constructor({ weights, algorithm, pool, seed = 0, heldOut = [] }) {
    const config = { ...SETTINGS, ...algorithm };
    if (config.mistake === "kl_sign") config.kl_coef *= -1;
    Object.assign(this, { config, pool, seed, heldOut, reference: weights, steps: 0 });
    this.policy = learner(weights);
    this.critic = config.baseline === "critic" && learner(criticOf(weights));
  }

  reward(text, right) {
    const isLax = this.config.mistake === "verifier_lax";
    return Number(isLax ? text.includes(right) : answer(text) === right);
  }

  // G completions of each of P new problems -> P groups, lists of G rows. own: a problem that comes
  // first, and the random numbers that answer it, {problem, random}
  async collect(own = null) {
    const { prompts_per_step: P, group_size: G } = this.config;
    const problems = own ? [own.problem] : [];
    while (problems.length < P) {
      const problem = drawProblem(this.random);
      if (!this.heldOut.includes(problem)) problems.push(problem);
    }
    const asked = problems.flatMap((problem, p) => Array.from({ length: G }, () =>
      ({ prompt: problem + "?", seed: (own && p === 0 ? own : this).random() * 2 ** 32 })));
    const isStale = this.config.mistake === "stale_sampler";
    const sampler = isStale ? this.reference : this.policy.weights;
    const rows = await this.pool.share("sample", sampler, asked);
    this.refuse(sum(rows.flatMap((row) => row.logps)), "the policy's logits are");
    return problems.map((problem, p) => rows.slice(p * G, (p + 1) * G).map((row) =>
      ({ ...row, reward: this.reward(textOf(row.ids), value(problem)) })));
  }

  // Give rows, under a name, one number for each token: as in `score`
  async score(rows, name, weights) {
    const scores = await this.pool.share("score", weights, rows);
    rows.forEach((row, i) => { row[name] = scores[i]; });
  }

  async addAdvantages(groups) { // to all rows, with a critic's values and returns
    const { critic, reference, config } = this, rows = groups.flat();
    if (config.kl_coef) await this.score(rows, "ref_logps", reference);
    if (critic) await this.score(rows, "values", critic.weights);
    compute_advantages(config, groups).forEach((columns, i) => Object.assign(rows[i], columns));
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
    const start = (b) => b * Math.floor(rows.length / M) + Math.min(b, rows.length % M);
    for (let epoch = 0; epoch < epochs && M; epoch++) {
      const order = this.shuffle(rows.length);
      for (let b = 0; b < M; b++)
        yield order.slice(start(b), start(b + 1)).sort((i, j) => i - j).map((i) => rows[i]);
    }
  }

  async gradient({ weights }, minibatch) { // of a network's loss
    const { config } = this, tokens = sum(lengthsOf(minibatch));
    const rows = minibatch.map((row, i) => ({ ...row, divisor: divisorOf(config, minibatch, i) }));
    let before = 0; // tokens of the rows before this one: every part gets about as many
    const parts = Object.groupBy(rows, ({ ids }) => {
      before += ids.length;
      return Math.floor(PARTS * (before - ids.length) / tokens);
    });
    const [total, ...others] = await this.pool.run("gradient", weights, parts, config);
    for (const gradient of others) for (let i = 0; i < total.length; i++) total[i] += gradient[i];
    return total;
  }

  async update(network, minibatch, learning_rate) { // one optimizer step
    const { max_grad_norm, warmup_steps } = this.config;
    const gradient = await this.gradient(network, minibatch);
    this.refuse(clip_grad_norm(gradient, max_grad_norm), "the gradient is");
    adamw(network, gradient, learning_rate * Math.min(1, (this.steps + 1) / (warmup_steps + 1)));
  }

  // Sample and verify a step's batch: G completions for each of P prompts; with dynamic sampling of
  // more, until P groups are mixed. own: as in `collect`
  async prepare(own) {
    const { prompts_per_step: P, max_draws, dynamic_sampling, mistake } = this.config;
    this.random = stream(this.seed * 1_000_003 + (mistake === "same_prompts" ? 0 : this.steps + 1));
    const isKept = (group) => !dynamic_sampling || isMixed(group);
    const drawn = await this.collect(own);
    while (drawn.filter(isKept).length < P && drawn.length < max_draws * P)
      drawn.push(...await this.collect());
    return (this.batch = { drawn, groups: drawn.filter(isKept).slice(0, P) });
  }

  // Train on the batch. If the training diverges it throws Diverged, and everything is as before.
  async learn() {
    const { groups } = this.batch, { learning_rate, critic_learning_rate } = this.config;
    const { steps, policy, critic } = this, before = structuredClone({ steps, policy, critic });
    try {
      await this.addAdvantages(groups);
      for (const minibatch of this.minibatches(groups.flat())) // one optimizer step for each
        await Promise.all([this.update(this.policy, minibatch, learning_rate),
          this.critic && this.update(this.critic, minibatch, critic_learning_rate)]);
      this.steps++;
    } catch (error) {
      Object.assign(this, before);
      throw error;
    }
  }

  async step() {
    await this.prepare();
    await this.learn();
  }
}
