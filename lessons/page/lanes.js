// A lane: a training run by an algorithm with its switches. Nothing here touches the document.

const EVERY = 5; // steps between two measurements of held-out accuracy
const START = 21; // of the random numbers that answer the reader's problem

// A switch's setting, with its values where it is off and on; the scripts that have its lines as
// they are then; and which algorithms have it.
const SWITCHES = {
  sigma: { setting: "sigma", values: [false, true],
    scripts: ["Dr. GRPO", "GRPO"], isIn: ({ sigma }) => sigma !== undefined },
  length: { setting: "divisor", values: ["limit", "length"],
    scripts: ["Dr. GRPO", "GRPO"], isIn: ({ baseline }) => baseline !== "critic" },
  kl: { setting: "kl_coef", values: [0, 0.04],
    scripts: ["DAPO", "GRPO"], isIn: ({ cap }) => cap === undefined },
  higher: { setting: "clip", values: [[0.8, 1.2], [0.8, 1.28]],
    scripts: ["GRPO", "DAPO"], isIn: ({ clip, whole }) => clip && !whole },
  replace: { setting: "dynamic_sampling", values: [false, true],
    scripts: ["GRPO", "DAPO"], isIn: ({ baseline }) => baseline !== "critic" },
};

// A choice: an algorithm, the switches that are flipped in it, and a patch of the clinic, if any
const PLAIN = { name: "GRPO", flipped: [], mistake: "" };
const isSet = (algorithm, { setting, values }) => `${algorithm[setting]}` === `${values[1]}`;

function algorithmOf({ name, flipped, mistake }) {
  const algorithm = { ...ALGORITHMS[name], mistake };
  for (const { setting, values } of flipped.map((key) => SWITCHES[key]))
    algorithm[setting] = values[Number(!isSet(algorithm, { setting, values }))];
  return algorithm;
}

// Whether a switch is on; undefined where the algorithm does not have it
function isOn(choice, key) {
  const algorithm = algorithmOf(choice);
  return SWITCHES[key].isIn(algorithm) ? isSet(algorithm, SWITCHES[key]) : undefined;
}

// The choice after a flip. Where all switches stand as in GRPO, Dr. GRPO or DAPO, it is that.
function flipSwitch(choice, key) {
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
function codeOf(choice, scripts, patches) {
  const code = { ...scripts[choice.name] };
  for (const key of choice.flipped)
    code[key] = scripts[SWITCHES[key].scripts[Number(isOn(choice, key))]][key];
  for (const key in patches)
    code[`lessons/clinic/${key}.diff`] = patches[key].lines[Number(key === choice.mistake)];
  return code;
}

class Lane {
  // world: what lanes share, {pool, weights, seed, heldOut, problem}
  constructor(world, choice, seed = world.seed) {
    Object.assign(this, { world, choice, seed, algorithm: algorithmOf(choice) });
    this.clear();
  }

  // columns: {groups, thrown, done} a step; accuracy: [step, share]; seeds: `begun` lanes, if done
  clear() {
    const { world, seed, algorithm } = this;
    this.trainer = new Trainer({ ...world, seed, algorithm });
    Object.assign(this, { columns: [], accuracy: [], begun: [], seeds: [], isCopy: false });
  }

  get steps() { return this.isCopy ? this.columns.length : this.trainer.steps; }
  get isDrawn() { return this.columns.at(-1)?.done === false; } // and not trained on yet

  // Draw the next step's batch, whose verdicts the reader may flip before it is trained on. The
  // reader's problem is always answered from the same random numbers.
  async draw() {
    const { problem } = this.world, random = stream(this.seed * 7919 + START);
    const { drawn, groups } = await this.trainer.prepare({ problem, random });
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

  // the log-probabilities of a group's tokens after the newest step
  follow(group) { return this.trainer.score(group, "after", this.trainer.policy.weights); }

  // The share of held-out problems answered right, each once and from the same random numbers.
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
    const isTrainedOn = algorithm === this.algorithm &&
      group.every((row) => row.advantages && row.reward === row.verdict);
    return pushes(algorithm, group, 1, isTrainedOn ? group : undefined);
  }
}

// The group shown by default: the mixed one with the fewest of one verdict, rather of right ones.
function lopsided(groups) {
  const scores = groups.map((group) => {
    const k = sum(rewardsOf(group)), G = group.length;
    return isMixed(group) ? Math.min(k - 0.5, G - k) : G;
  });
  return scores.indexOf(Math.min(...scores));
}

const T_95 = 4.303; // Student's t with two degrees of freedom, for three seeds
const around = (centre, half) => [centre, Math.max(0, centre - half), Math.min(1, centre + half)];
const interval = (shares) =>
  around(mean(shares), T_95 * deviation(shares) / Math.sqrt(shares.length - 1));

// [step, mean, low, high] of each measurement: of one seed with the 95 % band of that many
// problems, of three with the 95 % interval of their mean.
function band({ world, accuracy, seeds }) {
  const n = world.heldOut.length;
  return accuracy.map(([step, p], i) => {
    const shares = [p, ...seeds.map((one) => one.accuracy[i]?.[1])];
    if (shares.length === 3 && !shares.includes(undefined)) return [step, ...interval(shares)];
    return [step, ...around(p, 1.96 * Math.sqrt((p * (1 - p) + 1 / n) / n))];
  });
}

// The mean accuracy over the last third of the steps, with the interval of three seeds.
function lateAccuracy(lane) {
  const late = (one) => one.accuracy.filter(([step]) => step >= (2 / 3) * lane.steps);
  return interval([lane, ...lane.seeds].map((one) => mean(late(one).map(([, share]) => share))));
}

// As bytes: of the accuracy and of each column their number, then what is in them.
function toText({ accuracy, columns, world: { heldOut } }) {
  const bytes = [accuracy.length, ...accuracy.map(([, p]) => Math.round(p * heldOut.length))];
  for (const { groups, thrown } of columns.filter((column) => column.done)) {
    bytes.push(thrown, groups.length);
    bytes.push(...groups.flat().map((row) => 128 * row.verdict + row.ids.length));
  }
  return btoa(String.fromCharCode(...bytes));
}

function fromText(lane, text) { // the lane becomes a copy: its completions have no letters
  const { world: { heldOut }, trainer: { config: { group_size: G } } } = lane;
  const bytes = [...bytesOf(text)], take = (n) => bytes.splice(0, n);
  lane.accuracy = take(...take(1)).map((right, i) => [i * EVERY, right / heldOut.length]);
  while (bytes.length) {
    const [thrown, count] = take(2);
    const groups = Array.from({ length: count }, () => take(G).map((byte) => {
      const verdict = Number(byte > 127);
      return { ids: Array(byte % 128).fill(null), verdict, reward: verdict };
    }));
    if (groups.flat().length !== G * count) throw new RangeError("a damaged link");
    lane.columns.push({ groups, thrown, done: true });
  }
  lane.isCopy = true;
}
