// A lane: a training run by an algorithm with its switches, and what the page shows of it. Nothing
// here touches the document.

import { ALGORITHMS, centred, divisorOf, isMixed, mean, pushes, sum, withSigma,
  withoutSigma } from "./algorithms.js";
import { answer, drawProblem, stream, textOf, value } from "./arithmetic.js";
import { Trainer } from "./training.js";

export const EVERY = 5; // steps between two measurements of held-out accuracy
const START = 21; // of the random numbers that answer the reader's problem
export const rewardsIn = (rows) => rows.map((row) => row.reward);
export const lengthsIn = (rows) => rows.map((row) => row.ids.length);

// ---------------------------------------------------------------------- switches

// What a switch is called, whether an algorithm has it on (undefined: it cannot be switched there),
// what a flip changes, and the tag in algorithms/TAGS.md that says why it is on, and why off.
export const SWITCHES = {
  sigma: {
    label: "÷ σ", tags: ["Dr. GRPO: no / sigma", "GRPO: / sigma"],
    isOn: ({ advantages: A, over_batch }) =>
      (over_batch ? undefined : withoutSigma(A) ? true : withSigma(A) ? false : undefined),
    flip: ({ advantages: A }) => ({ advantages: withoutSigma(A) ?? withSigma(A) }),
  },
  length: {
    label: "÷ length", tags: ["Dr. GRPO: no / length", "GRPO: / length"],
    isOn: ({ divisor, critic }) => (critic ? undefined : divisor === "length"),
    flip: ({ divisor }) => ({ divisor: divisor === "length" ? "limit" : "length" }),
  },
  kl: {
    label: "KL", tags: ["GRPO: KL in the loss", "GRPO: KL in the loss"],
    isOn: ({ kl_coef, cap }) => (cap === undefined ? Boolean(kl_coef) : undefined),
    flip: ({ kl_coef }) => ({ kl_coef: kl_coef ? 0 : 0.04 }),
  },
  higher: {
    label: "clip-higher", tags: ["PPO: clip", "DAPO: clip-higher"],
    isOn: ({ clip, whole }) => (clip && !whole ? clip[1] === 1.28 : undefined),
    flip: ({ clip }) => ({ clip: [0.8, clip[1] === 1.28 ? 1.2 : 1.28] }),
  },
  replace: {
    label: "replace silent groups", tags: ["DAPO: dynamic sampling", "DAPO: dynamic sampling"],
    isOn: ({ dynamic_sampling, critic }) => (critic ? undefined : Boolean(dynamic_sampling)),
    flip: ({ dynamic_sampling }) => ({ dynamic_sampling: !dynamic_sampling }),
  },
};
const KEYS = Object.keys(SWITCHES);

export const MISTAKES = { // patches of the clinic, by what they do
  "": "nothing",
  stale_sampler: "never update the sampler", verifier_lax: "accept the answer anywhere",
  same_prompts: "repeat the same prompts", kl_sign: "reverse the KL",
};

export const PLAIN = { name: "GRPO", flipped: [], mistake: "" }; // a choice

export function algorithmOf({ name, flipped, mistake }) {
  let algorithm = { ...ALGORITHMS[name], mistake };
  for (const key of flipped) algorithm = { ...algorithm, ...SWITCHES[key].flip(algorithm) };
  return algorithm;
}

export const isOn = (choice, key) => SWITCHES[key].isOn(algorithmOf(choice));
export const tagOf = (choice, key) => (key === "length" && algorithmOf(choice).divisor === "tokens"
  ? "DAPO: token mean" : SWITCHES[key].tags[Number(isOn(choice, key))]);
export const nameOf = ({ name, flipped, mistake }) => [name, ...flipped.map((key) =>
  `${isOn({ ...PLAIN, name }, key) ? "without" : "with"} ${SWITCHES[key].label}`),
...(mistake ? [`broken: ${MISTAKES[mistake]}`] : [])].join(", ");

// The choice after a flip. Where all switches stand as in GRPO, Dr. GRPO or DAPO, it is that.
export function flipSwitch(choice, key) {
  const { name, flipped, mistake } = choice;
  const next = { name, mistake,
    flipped: flipped.includes(key) ? flipped.filter((one) => one !== key) : [...flipped, key] };
  const three = ["GRPO", "Dr. GRPO", "DAPO"].map((name) => ({ name, flipped: [], mistake }));
  const same = (other) => KEYS.every((one) => isOn(other, one) === isOn(next, one));
  return (three.some((one) => one.name === name) && three.find(same)) || next;
}

// The lines of a choice's code by function, from those of all scripts: its own, with the lines that
// its switches and its mistake change. patches: of all mistakes that are to be seen.
export function codeOf(choice, scripts, patches = {}) {
  const { name, flipped, mistake } = choice, code = structuredClone(scripts[name]);
  const { advantages, clip, divisor, kl_coef, dynamic_sampling } = algorithmOf(choice);
  if (flipped.includes("sigma")) {
    const other = withoutSigma(advantages) ? "GRPO" : "Dr. GRPO";
    code.compute_advantages = scripts[other].compute_advantages;
  }
  if (flipped.includes("length"))
    code.policy_loss[code.policy_loss.length - 1] =
      scripts[divisor === "length" ? "GRPO" : "Dr. GRPO"].policy_loss.at(-1);
  if (flipped.includes("higher")) {
    const line = scripts[clip[1] === 1.28 ? "DAPO" : "GRPO"].policy_loss
      .find((line) => line.includes("ratio.clamp"));
    code.policy_loss = code.policy_loss.map((old) => (old.includes("ratio.clamp") ? line : old));
  }
  if (flipped.includes("kl") && kl_coef && !code.policy_loss.some((line) => line.includes("log_u")))
    code.policy_loss.splice(-1, 0, ...scripts.GRPO.policy_loss.slice(-4, -1));
  if (flipped.includes("replace"))
    code.train = dynamic_sampling ? scripts.DAPO.train.slice(0, -2) : scripts.GRPO.train;
  if (kl_coef !== undefined) code.settings = [`kl_coef = ${kl_coef}`];
  if (clip) code.settings = [...code.settings ?? [], `clip = ${clip.join(" to ")}`];
  for (const key in patches)
    code[`lessons/clinic/${key}.diff`] = patches[key].lines[Number(key === mistake)];
  return code;
}

// The difference of two lists of lines: [mark, line], mark one of " ", "-" and "+".
export function difference(a, b) {
  // common[i][j]: equal lines of the rest, from line i of a and line j of b on
  const common = Array.from({ length: a.length + 1 }, () => Array(b.length + 1).fill(0)),
    lines = [];
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1
        : Math.max(common[i + 1][j], common[i][j + 1]);
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    const fromA = j === b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1]);
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push([" ", a[i++]]) && j++;
    else lines.push(fromA ? ["-", a[i++]] : ["+", b[j++]]);
  }
  return lines;
}

// ---------------------------------------------------------------------- a training run

export class Lane {
  // world: what lanes share, {pool, weights, seed, heldOut, problem}
  constructor(world, choice, seed = world.seed) {
    Object.assign(this, { world, choice, seed, algorithm: algorithmOf(choice) });
    this.clear();
  }

  // columns: of each step {groups, thrown, done}; accuracy: [step, share]; seeds: other lanes like
  // it
  clear() {
    const { world, seed, algorithm } = this, draw = (random) => {
      for (;;) {
        const problem = drawProblem(random);
        if (!world.heldOut.includes(problem)) return problem;
      }
    };
    this.trainer = new Trainer({ ...world, seed, algorithm, draw });
    Object.assign(this, { columns: [], accuracy: [], seeds: [], isCopy: false });
  }

  get steps() { return this.isCopy ? this.columns.length : this.trainer.steps; }

  get name() { return nameOf(this.choice); }

  // Draw the next step's batch, whose verdicts the reader may flip before it is trained on. The
  // reader's problem is always answered from the same random numbers.
  async draw() {
    const { trainer, seed, world: { problem } } = this, random = stream(seed * 7919 + START);
    const seeds = Array.from({ length: trainer.config.group_size }, () => random() * 2 ** 32);
    const { drawn, groups } = await trainer.prepare({ problem, seeds });
    for (const row of drawn.flat()) row.verdict = row.reward;
    for (const group of groups) group.sort((a, b) => b.verdict - a.verdict);
    if (this.columns.at(-1)?.done === false) this.columns.pop();
    this.columns.push({ groups, thrown: drawn.length - groups.length, done: false });
  }

  async step() {
    if (this.columns.at(-1)?.done !== false) await this.draw();
    if (!this.accuracy.length) await this.measure();
    const column = this.columns.at(-1);
    await this.trainer.learn();
    column.done = true;
    if (column.groups.length) await this.follow(column.groups[lopsided(column.groups)]);
    if (this.steps % EVERY === 0) await this.measure();
  }

  async follow(group) { // the log-probabilities of a group's tokens after the newest step
    const after = await this.world.pool.share("score", this.trainer.policy.weights,
      { rows: group });
    group.forEach((row, i) => { row.after = after[i]; });
  }

  // The share of right answers to the held-out problems, one completion each, always from the same
  // random numbers.
  async measure() {
    const { pool, heldOut } = this.world, prompts = heldOut.map((problem) => problem + "?");
    const seeds = heldOut.map((_, i) => i);
    const rows = await pool.share("sample", this.trainer.policy.weights, { prompts, seeds });
    const right = rows.map((row, i) => Number(answer(textOf(row.ids)) === value(heldOut[i])));
    this.accuracy.push([this.steps, mean(right)]);
  }

  get collapsed() { // as measured at this step
    const [step, share] = this.accuracy.at(-1) ?? [];
    return step === this.steps && share < this.accuracy[0][1] / 2;
  }

  // The pushes on a group's tokens as `pushes` gives them: those trained on, or, where the reader
  // has flipped a verdict or chosen another algorithm, those that it would get.
  pushesOn(group, algorithm = this.algorithm) {
    const lengths = lengthsIn(group), asked = algorithm !== this.algorithm;
    const given = pushes(algorithm, rewardsIn(group), lengths);
    const isOther = (row) => !row.advantages || row.reward !== row.verdict;
    const { critic, over_batch } = algorithm; // which take more than this group
    if (!(critic || over_batch) || asked || group.some(isOther)) return given;
    return given.map(({ tokens }, i) => ({ advantage: mean(group[i].advantages),
      tokens: tokens.map((_, t) =>
        ({ weight: group[i].advantages[t] / divisorOf(algorithm, lengths, i) })) }));
  }
}

// The group of a step that is shown if the reader points at none: the mixed one with the fewest of
// one verdict, rather of right ones.
export function lopsided(groups) {
  const scores = groups.map((group) => {
    const k = sum(rewardsIn(group)), G = group.length;
    return isMixed(rewardsIn(group)) ? Math.min(k - 0.5, G - k) : G;
  });
  return scores.indexOf(Math.min(...scores));
}

// ---------------------------------------------------------------------- accuracy, with its band

const T_95 = 4.303; // Student's t with two degrees of freedom, for three seeds

// [step, mean, low, high] of each measurement: of one seed with the 95 % band of that many
// problems, of three with the 95 % interval of their mean.
export function band(lane) {
  const n = lane.world.heldOut.length, all = [lane, ...lane.seeds];
  return lane.accuracy.map(([step, p], i) => {
    const shares = all.map((one) => one.accuracy[i]?.[1]);
    if (all.length < 3 || shares.includes(undefined)) {
      const half = 1.96 * Math.sqrt((p * (1 - p) + 1 / n) / n);
      return [step, p, Math.max(0, p - half), Math.min(1, p + half)];
    }
    return [step, ...interval(shares)];
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

// ---------------------------------------------------------------------- a run in a link

// Numbers below 256: of accuracy and of each column their number, then what is in them.
export function toBytes({ accuracy, columns, world }) {
  const bytes = [accuracy.length, ...accuracy.map(([, p]) => Math.round(p * world.heldOut.length))];
  for (const { groups, thrown } of columns.filter((column) => column.done)) {
    bytes.push(Math.min(thrown, 255), groups.length);
    for (const row of groups.flat()) bytes.push(128 * row.verdict + row.ids.length);
  }
  return Uint8Array.from(bytes);
}

export function fromBytes(lane, bytes) { // the lane becomes a copy: its completions have no letters
  const { world: { heldOut }, trainer: { config: { group_size: G } } } = lane;
  let at = 0;
  const next = () => bytes[at++], times = (n, make) => Array.from({ length: n }, (_, i) => make(i));
  lane.accuracy = times(next(), (i) => [i * EVERY, next() / heldOut.length]);
  while (at < bytes.length) {
    const thrown = next(), groups = times(next(), () => times(G, () => {
      const byte = next(), verdict = Number(byte > 127);
      return { ids: Array(byte % 128).fill(null), verdict, reward: verdict };
    }));
    lane.columns.push({ groups, thrown, done: true });
  }
  lane.isCopy = true;
}

async function through(bytes, stream) {
  const result = new Response(new Blob([bytes]).stream().pipeThrough(stream));
  return new Uint8Array(await result.arrayBuffer());
}

export async function toText(bytes) {
  const packed = await through(bytes, new CompressionStream("deflate-raw"));
  const letters = btoa(String.fromCharCode(...packed));
  return letters.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function fromText(text) {
  const letters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  return through(bytes, new DecompressionStream("deflate-raw"));
}
