// A lane: a training run by an algorithm with its switches, and what the page shows of it. Nothing
// here touches the document.

import { ALGORITHMS, divisorOf, isMixed, lengthsOf, mean, pushes, rewardsOf, sum }
  from "./algorithms.js";
import { answer, stream, textOf, value } from "./arithmetic.js";
import { bytesOf } from "./product.js";
import { Trainer } from "./training.js";

const EVERY = 5; // steps between two measurements of held-out accuracy
const START = 21; // of the random numbers that answer the reader's problem

// What a switch is called; whether an algorithm has it on (undefined: it cannot be switched there);
// what a flip changes; and the script that has its lines as they are then.
export const SWITCHES = {
  sigma: {
    label: "÷ σ",
    isOn: ({ sigma }) => sigma,
    flip: ({ sigma }) => ({ sigma: !sigma }),
    script: ({ sigma }) => (sigma ? "GRPO" : "Dr. GRPO"),
  },
  length: {
    label: "÷ length",
    isOn: ({ divisor, baseline }) => (baseline === "critic" ? undefined : divisor === "length"),
    flip: ({ divisor }) => ({ divisor: divisor === "length" ? "limit" : "length" }),
    script: ({ divisor }) => (divisor === "length" ? "GRPO" : "Dr. GRPO"),
  },
  kl: {
    label: "KL",
    isOn: ({ kl_coef, cap }) => (cap === undefined ? Boolean(kl_coef) : undefined),
    flip: ({ kl_coef }) => ({ kl_coef: kl_coef ? 0 : 0.04 }),
    script: ({ kl_coef }) => (kl_coef ? "GRPO" : "DAPO"),
  },
  higher: {
    label: "clip-higher",
    isOn: ({ clip, whole }) => (clip && !whole ? clip[1] === 1.28 : undefined),
    flip: ({ clip }) => ({ clip: [0.8, clip[1] === 1.28 ? 1.2 : 1.28] }),
    script: ({ clip }) => (clip[1] === 1.28 ? "DAPO" : "GRPO"),
  },
  replace: {
    label: "replace silent groups",
    isOn: ({ dynamic_sampling: on, baseline }) => (baseline === "critic" ? undefined : Boolean(on)),
    flip: ({ dynamic_sampling }) => ({ dynamic_sampling: !dynamic_sampling }),
    script: ({ dynamic_sampling }) => (dynamic_sampling ? "DAPO" : "GRPO"),
  },
};

export const MISTAKES = { // patches of the clinic, by what they do
  "": "nothing",
  stale_sampler: "never update the sampler", verifier_lax: "accept the answer anywhere",
  same_prompts: "repeat the same prompts", kl_sign: "reverse the KL",
};

export const PLAIN = { name: "GRPO", flipped: [], mistake: "" }; // a choice

export function algorithmOf({ name, flipped, mistake }) {
  const algorithm = { ...ALGORITHMS[name], mistake };
  for (const key of flipped) Object.assign(algorithm, SWITCHES[key].flip(algorithm));
  return algorithm;
}

export const isOn = (choice, key) => SWITCHES[key].isOn(algorithmOf(choice));

export function nameOf({ name, flipped, mistake }) {
  const parts = flipped.map((key) =>
    `${isOn({ ...PLAIN, name }, key) ? "without" : "with"} ${SWITCHES[key].label}`);
  return [name, ...parts, ...(mistake ? [`broken: ${MISTAKES[mistake]}`] : [])].join(", ");
}

// The choice after a flip. Where all switches stand as in GRPO, Dr. GRPO or DAPO, it is that.
export function flipSwitch(choice, key) {
  if (isOn(choice, key) === undefined) return choice;
  const { name, flipped } = choice, others = flipped.filter((one) => one !== key);
  const next = { ...choice, flipped: others.length < flipped.length ? others : [...others, key] };
  const three = ["GRPO", "Dr. GRPO", "DAPO"];
  const same = (name) => Object.keys(SWITCHES).every((one) =>
    isOn({ ...PLAIN, name }, one) === isOn(next, one));
  const found = three.includes(name) && three.find(same);
  return found ? { ...choice, name: found, flipped: [] } : next;
}

// The lines of a choice's code: those of its script, but for the flipped switches
export function codeOf(choice, scripts, patches) {
  const code = { ...scripts[choice.name] };
  for (const key of choice.flipped)
    code[key] = scripts[SWITCHES[key].script(algorithmOf(choice))][key];
  for (const key in patches)
    code[`lessons/clinic/${key}.diff`] = patches[key].lines[Number(key === choice.mistake)];
  return code;
}

export class Lane {
  // world: what lanes share, {pool, weights, seed, heldOut, problem}
  constructor(world, choice, seed = world.seed) {
    Object.assign(this, { world, choice, seed, name: nameOf(choice) });
    this.algorithm = algorithmOf(choice);
    this.clear();
  }

  // columns: of each step {groups, thrown, done}; accuracy: [step, share]; seeds: lanes like it
  clear() {
    const { world, seed, algorithm } = this;
    this.trainer = new Trainer({ ...world, seed, algorithm });
    Object.assign(this, { columns: [], accuracy: [], seeds: [], isCopy: false });
  }

  get steps() { return this.isCopy ? this.columns.length : this.trainer.steps; }

  get isDrawn() { return this.columns.at(-1)?.done === false; } // and not trained on yet

  // Draw the next step's batch, whose verdicts the reader may flip before it is trained on. The
  // reader's problem is always answered from the same random numbers.
  async draw() {
    const { trainer, seed, world: { problem } } = this, random = stream(seed * 7919 + START);
    const seeds = Array.from({ length: trainer.config.group_size }, () => random() * 2 ** 32);
    const { drawn, groups } = await trainer.prepare({ problem, seeds });
    for (const row of drawn.flat()) row.verdict = row.reward;
    for (const group of groups) group.sort((a, b) => b.verdict - a.verdict);
    if (this.isDrawn) this.columns.pop();
    this.columns.push({ groups, thrown: drawn.length - groups.length, done: false });
  }

  async step() {
    if (!this.isDrawn) await this.draw();
    if (!this.accuracy.length) await this.measure();
    const column = this.columns.at(-1);
    await this.trainer.learn();
    column.done = true;
    if (column.groups.length) await this.follow(column.groups[lopsided(column.groups)]);
    if (this.steps % EVERY === 0) await this.measure();
  }

  async follow(group) { // the log-probabilities of a group's tokens after the newest step
    const after = await this.world.pool.share("score", this.trainer.policy.weights, group);
    group.forEach((row, i) => { row.after = after[i]; });
  }

  // The share of right answers to the held-out problems, one completion each, always from the same
  // random numbers.
  async measure() {
    const { pool, heldOut } = this.world;
    const asked = heldOut.map((problem, seed) => ({ prompt: problem + "?", seed }));
    const rows = await pool.share("sample", this.trainer.policy.weights, asked);
    const right = rows.map((row, i) => Number(answer(textOf(row.ids)) === value(heldOut[i])));
    this.accuracy.push([this.steps, mean(right)]);
  }

  // The pushes on a group's tokens as `pushes` gives them: those trained on, or, where the reader
  // has flipped a verdict or chosen another algorithm, those that it would get.
  pushesOn(group, algorithm = this.algorithm) {
    const isTrainedOn = group.every((row) => row.advantages && row.reward === row.verdict);
    if (algorithm !== this.algorithm || !isTrainedOn) return pushes(algorithm, group);
    return group.map(({ advantages }, i) => ({ advantage: mean(advantages),
      tokens: advantages.map((A) => A / divisorOf(algorithm, group, i)) }));
  }
}

// The group of a step that is shown if the reader points at none: the mixed one with the fewest of
// one verdict, rather of right ones.
export function lopsided(groups) {
  const scores = groups.map((group) => {
    const k = sum(rewardsOf(group)), G = group.length;
    return isMixed(group) ? Math.min(k - 0.5, G - k) : G;
  });
  return scores.indexOf(Math.min(...scores));
}

const T_95 = 4.303; // Student's t with two degrees of freedom, for three seeds

// [step, mean, low, high] of each measurement: of one seed with the 95 % band of that many
// problems, of three with the 95 % interval of their mean.
export function band({ world, accuracy, seeds }) {
  const n = world.heldOut.length;
  return accuracy.map(([step, p], i) => {
    const others = seeds.map((one) => one.accuracy[i]?.[1]);
    if (others.length === 2 && !others.includes(undefined))
      return [step, ...interval([p, ...others])];
    const half = 1.96 * Math.sqrt((p * (1 - p) + 1 / n) / n);
    return [step, p, Math.max(0, p - half), Math.min(1, p + half)];
  });
}

function interval(shares) {
  const centre = mean(shares), n = shares.length;
  const half = T_95 * Math.sqrt(sum(shares.map((x) => (x - centre) ** 2)) / (n - 1) / n);
  return [centre, Math.max(0, centre - half), Math.min(1, centre + half)];
}

// The mean accuracy over the last third of the steps, with the interval of three seeds.
export function lateAccuracy(lane) {
  const late = (one) => one.accuracy.filter(([step]) => step >= (2 / 3) * lane.steps);
  return interval([lane, ...lane.seeds].map((one) => mean(late(one).map(([, share]) => share))));
}

// As bytes: of the accuracy and of each column their number, then what is in them.
export function toText({ accuracy, columns, world: { heldOut } }) {
  const bytes = [accuracy.length, ...accuracy.map(([, p]) => Math.round(p * heldOut.length))];
  for (const { groups, thrown } of columns.filter((column) => column.done)) {
    bytes.push(thrown, groups.length);
    for (const row of groups.flat()) bytes.push(128 * row.verdict + row.ids.length);
  }
  return btoa(String.fromCharCode(...bytes));
}

export function fromText(lane, text) { // the lane becomes a copy: its completions have no letters
  const { world: { heldOut }, trainer: { config: { group_size: G } } } = lane;
  const bytes = [...bytesOf(text)], take = (n) => bytes.splice(0, n);
  lane.accuracy = take(...take(1)).map((right, i) => [i * EVERY, right / heldOut.length]);
  while (bytes.length) {
    const [thrown, count] = take(2), rows = take(G * count).map((byte) => {
      const verdict = Number(byte > 127);
      return { ids: Array(byte % 128).fill(null), verdict, reward: verdict };
    });
    if (rows.length !== G * count) throw new RangeError("a damaged link");
    const groups = Array.from({ length: count }, (_, g) => rows.slice(g * G, (g + 1) * G));
    lane.columns.push({ groups, thrown, done: true });
  }
  lane.isCopy = true;
}
