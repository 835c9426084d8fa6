// A lane: one algorithm with its settings, its training, and the group of completions that the page shows of it.
// Nothing here touches the document.

import { ALGORITHMS, centred, mean, standardised } from "./algorithms.js";
import { answer, drawProblem, stream, textOf, value } from "./arithmetic.js";
import { SETTINGS, Trainer } from "./training.js";

export const EVERY = 5; // steps between two measurements of held-out accuracy
const START = 21; // of the random numbers: here some of the first completions that a reader sees work the problem out
const same = (list) => Object.fromEntries(list.map((x) => [String(x), x]));

// What a reader can change: the name that the page shows, and the values by the names that the page shows of them.
export const CHOICES = {
  advantages: ["advantage", { "(R − mean) / σ": standardised, "R − mean": centred }],
  divisor: ["divided by", { "its completion's length": "length", "56, the length limit": "limit", "the number of tokens": "tokens" }],
  clip: ["clip", { "0.8 to 1.2": [0.8, 1.2], "0.8 to 1.28": [0.8, 1.28], "0.991 to 1.012": [0.991, 1.012], none: [0, Infinity] }],
  kl_coef: ["weight of the KL", same([0, 0.04, 0.4])],
  epochs: ["epochs, passes over a batch", same([1, 2, 4])],
  group_size: ["G, completions", same([2, 4, 8, 16])],
  learning_rate: ["learning rate", same([5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 3e-3, 1e-2])],
  mistake: ["mistake of the clinic", { none: "", "the sampler is never updated": "stale_sampler", "the answer may stand anywhere": "verifier_lax",
    "the same prompts at every step": "same_prompts", "the KL has the wrong sign": "kl_sign" }],
};

// The choice of an algorithm that is left as in its script; undefined for what it does not have.
export function ownChoice(name, key) {
  const algorithm = ALGORITHMS[name], own = key === "kl_coef" ? algorithm[key] : { ...SETTINGS, ...algorithm }[key];
  if ((key === "divisor" && algorithm.critic) || (key === "epochs" && algorithm.cap === 0)) return undefined;
  return Object.keys(CHOICES[key][1]).find((choice) => String(CHOICES[key][1][choice]) === String(own));
}

const LAST_LINE = { length: "GRPO", limit: "Dr. GRPO", tokens: "DAPO" }; // whose loss is divided so

export const mistakeOf = ({ settings }) => CHOICES.mistake[1][settings.mistake ?? "none"];

// The lines of a lane by function, from those of all scripts: its own, with the changed settings and the lines that they change.
// mistakes: of all lanes, by name [the lines as they should be, as they are].
export function codeOf({ name, settings }, scripts, mistakes = {}) {
  const code = structuredClone(scripts[name]), chosen = (key) => CHOICES[key][1][settings[key]];
  if (settings.advantages) code.compute_advantages = scripts[chosen("advantages") === centred ? "Dr. GRPO" : "GRPO"].compute_advantages;
  if (settings.divisor) code.policy_loss.splice(-1, 1, scripts[LAST_LINE[chosen("divisor")]].policy_loss.at(-1));
  for (const key in mistakes) code[`lessons/clinic/${key}.diff`] = mistakes[key][Number(key === mistakeOf({ settings }))];
  const numbers = Object.keys(CHOICES).slice(2, -1).filter((key) => ownChoice(name, key)); // those that are no code
  return { settings: numbers.map((key) => `${key} = ${settings[key] ?? ownChoice(name, key)}`), ...code };
}

// The difference of two lists of lines: [mark, line], mark one of " ", "-" and "+".
export function difference(a, b) {
  const common = Array.from({ length: a.length + 1 }, () => Array(b.length + 1).fill(0)), lines = []; // of the rest, from i and j on
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push([" ", a[i++]]) && j++;
    else if (i < a.length && (j === b.length || common[i + 1][j] >= common[i][j + 1])) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  return lines;
}

export class Lane {
  // world: what lanes share, {pool, weights, seed, heldOut, problem, draw}; settings: choices by name
  constructor(world, name, settings = {}) {
    const changes = Object.entries(settings).map(([key, choice]) => [key, CHOICES[key][1][choice]]);
    this.algorithm = { ...ALGORITHMS[name], ...Object.fromEntries(changes) };
    const draw = (random) => {
      for (;;) {
        const problem = drawProblem(random);
        if (!world.heldOut.includes(problem)) return problem;
      }
    };
    this.trainer = new Trainer({ ...world, algorithm: this.algorithm, draw });
    Object.assign(this, { world, name, settings, at: 0, metrics: [], accuracy: [], group: [], last: null, requests: 0 });
  }

  get steps() { return this.trainer.steps; }

  look(step) { this.at = this.trainer.states.findLast(({ steps }) => steps <= step).steps; } // the newest kept state up to a step

  // Write the shown problem's group by the policy at step `at`, always from the same random numbers. A newer request wins.
  async answer() {
    const { pool, seed, problem, draw } = this.world, random = stream(seed * 7919 + draw + START), right = value(problem), request = ++this.requests;
    const prompts = Array(this.trainer.config.group_size).fill(problem + "?"), seeds = prompts.map(() => random() * 2 ** 32);
    const weights = this.trainer.sampler(this.trainer.states.find(({ steps }) => steps === this.at).policy);
    const rows = await pool.share("sample", weights, { prompts, seeds });
    if (request !== this.requests) return;
    this.group = rows.map((row) => ({ ...row, verdict: this.trainer.reward(textOf(row.ids), right) }));
    for (const row of this.group) row.reward = row.verdict; // until the reader flips it
  }

  // The share of right answers to the held-out problems, one completion each, always from the same random numbers.
  async measure() {
    const { pool, heldOut } = this.world, prompts = heldOut.map((problem) => problem + "?"), seeds = heldOut.map((_, i) => i);
    const rows = await pool.share("sample", this.trainer.policy.weights, { prompts, seeds });
    this.accuracy.push([this.steps, mean(rows.map((row, i) => Number(answer(textOf(row.ids)) === value(heldOut[i]))))]);
  }

  // One training step, on the shown group and those of drawn problems, from the step that is looked at: what came after it goes.
  async step() {
    const { trainer, group, world } = this;
    this.back();
    if (!this.accuracy.length) await this.measure();
    const { metrics } = await trainer.step([group.map((row) => ({ ...row }))]);
    const after = await world.pool.share("score", trainer.policy.weights, { rows: group });
    this.last = group.map((row, i) => ({ ...row, after: after[i] }));
    this.metrics.push(metrics);
    this.at = this.steps;
    await this.answer();
    if (this.steps % EVERY === 0) await this.measure();
  }

  back() {
    if (this.at === this.steps) return;
    this.trainer.takeBack(this.at);
    this.metrics = this.metrics.filter(({ step }) => step <= this.at);
    this.accuracy = this.accuracy.filter(([step]) => step <= this.at);
    this.last = null;
  }

  get collapsed() { // as measured at this step
    const [step, share] = this.accuracy.at(-1) ?? [];
    return step === this.steps && share < this.accuracy[0][1] / 2;
  }
}
