// The model of toy_env in plain JavaScript: a Llama-type transformer with 3 layers, read one token at a time.
// Everything is computed in float64 from the shipped float32 weights; tests/test_in_browser.py compares it with torch.

export const TOKENS = ["<pad>", "<bos>", "<eos>", ..."0123456789+-?=;#"];
export const BOS = 1, EOS = 2, LONGEST = 56; // LONGEST: max_new_tokens of the scripts
const WIDTH = 64, INNER = 176, LAYERS = 3, HEADS = 4, HEAD = WIDTH / HEADS, EPSILON = 1e-6, THETA = 10000;

// The tensors of a policy in the order in which the page holds them: name, rows, columns.
const SHAPES = [["embed", TOKENS.length, WIDTH], ["norm", 1, WIDTH]];
for (let l = 0; l < LAYERS; l++) {
  for (const name of ["q", "k", "v", "o"]) SHAPES.push([name + l, WIDTH, WIDTH]);
  SHAPES.push(["gate" + l, INNER, WIDTH], ["up" + l, INNER, WIDTH], ["down" + l, WIDTH, INNER]);
  SHAPES.push(["norm_attention" + l, 1, WIDTH], ["norm_mlp" + l, 1, WIDTH]);
}
const WEIGHTS = SHAPES.reduce((sum, [, rows, columns]) => sum + rows * columns, 0); // 152,192
const ROWS = SHAPES.reduce((sum, [, rows]) => sum + rows, 0);

// All policies of the page from its bytes: the base model in float32, then for each other policy one float32 scale per row
// and 8 bits per weight, the difference from the base.
export function readPolicies(base64, names) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;
  const base = Float64Array.from(new Float32Array(bytes, 0, WEIGHTS));
  const policies = { [names[0]]: base };
  let at = 4 * WEIGHTS;
  for (const name of names.slice(1)) {
    const scales = new Float32Array(bytes, at, ROWS), steps = new Int8Array(bytes, at + 4 * ROWS, WEIGHTS);
    const weights = policies[name] = base.slice();
    let row = 0, i = 0;
    for (const [, rows, columns] of SHAPES)
      for (let r = 0; r < rows; r++, row++) for (let c = 0; c < columns; c++, i++) weights[i] += scales[row] * steps[i];
    at += 4 * ROWS + WEIGHTS;
  }
  return Object.fromEntries(Object.entries(policies).map(([name, weights]) => [name, tensors(weights)]));
}

function tensors(weights) {
  let at = 0;
  return Object.fromEntries(SHAPES.map(([name, rows, columns]) => {
    const tensor = weights.subarray(at, (at += rows * columns));
    return [name, tensor];
  }));
}

function times(matrix, vector) { // (rows, columns) x (columns,) -> (rows,)
  const columns = vector.length, result = new Float64Array(matrix.length / columns);
  for (let row = 0, i = 0; row < result.length; row++) {
    let sum = 0;
    for (let column = 0; column < columns; column++) sum += matrix[i++] * vector[column];
    result[row] = sum;
  }
  return result;
}

function normalise(x, scale) { // RMSNorm
  const size = Math.sqrt(x.reduce((sum, value) => sum + value * value, 0) / x.length + EPSILON);
  return x.map((value, i) => (value / size) * scale[i]);
}

function rotate(x, position) { // rotary position embedding, in place: each head's halves are the two coordinates
  for (let i = 0; i < HEAD / 2; i++) {
    const angle = position * THETA ** ((-2 * i) / HEAD), cos = Math.cos(angle), sin = Math.sin(angle);
    for (let at = i; at < WIDTH; at += HEAD) {
      const a = x[at], b = x[at + HEAD / 2];
      x[at] = a * cos - b * sin;
      x[at + HEAD / 2] = b * cos + a * sin;
    }
  }
  return x;
}

// Reads a text token by token and keeps the keys and values of what it has read.
export class Reader {
  constructor(policy, keys = [], values = []) {
    this.policy = policy;
    this.keys = Array.from({ length: LAYERS }, (_, l) => [...(keys[l] ?? [])]);
    this.values = Array.from({ length: LAYERS }, (_, l) => [...(values[l] ?? [])]);
  }

  copy() { return new Reader(this.policy, this.keys, this.values); }

  read(token) { // -> the logits of the token that follows
    const { policy } = this, position = this.keys[0].length;
    let x = policy.embed.slice(token * WIDTH, (token + 1) * WIDTH);
    for (let l = 0; l < LAYERS; l++) {
      const a = normalise(x, policy["norm_attention" + l]);
      const query = rotate(times(policy["q" + l], a), position);
      this.keys[l].push(rotate(times(policy["k" + l], a), position));
      this.values[l].push(times(policy["v" + l], a));
      const attended = times(policy["o" + l], this.attend(l, query));
      x = x.map((value, i) => value + attended[i]);
      const m = normalise(x, policy["norm_mlp" + l]);
      const gate = times(policy["gate" + l], m), up = times(policy["up" + l], m);
      const out = times(policy["down" + l], gate.map((g, i) => (g / (1 + Math.exp(-g))) * up[i])); // SwiGLU
      x = x.map((value, i) => value + out[i]);
    }
    return times(policy.embed, normalise(x, policy.norm)); // the embedding is tied
  }

  attend(l, query) {
    const mixed = new Float64Array(WIDTH);
    for (let start = 0; start < WIDTH; start += HEAD) {
      const weights = softmax(this.keys[l].map((key) => {
        let dot = 0;
        for (let i = start; i < start + HEAD; i++) dot += query[i] * key[i];
        return dot / Math.sqrt(HEAD);
      }));
      this.values[l].forEach((value, t) => {
        for (let i = start; i < start + HEAD; i++) mixed[i] += weights[t] * value[i];
      });
    }
    return mixed;
  }
}

export function softmax(logits) {
  const most = Math.max(...logits), powers = Array.from(logits, (z) => Math.exp(z - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

// The token that a random number u in [0, 1) picks from the full softmax at temperature 1.
export function pick(logits, u) {
  let sum = 0;
  const probabilities = softmax(logits), token = probabilities.findIndex((p) => (sum += p) > u);
  return token < 0 ? probabilities.length - 1 : token;
}

export const encode = (text) => [BOS, ...Array.from(text, (character) => TOKENS.indexOf(character))];

// Completions of one prompt: yields after each token, until all have ended. One list of token ids per completion.
export function* complete(policy, prompt, group, random) {
  const first = new Reader(policy);
  let logits;
  for (const token of encode(prompt)) logits = first.read(token);
  const rows = Array.from({ length: group }, () => ({ ids: [], reader: first.copy(), logits }));
  for (let t = 0; t < LONGEST && rows.some((row) => row.logits); t++) {
    for (const row of rows.filter((row) => row.logits)) {
      const token = pick(row.logits, random());
      row.ids.push(token);
      row.logits = token === EOS || t + 1 === LONGEST ? null : row.reader.read(token);
    }
    yield rows.map((row) => row.ids);
  }
}

// Random numbers in [0, 1) from a seed (mulberry32), so that a group can be drawn again.
export function stream(seed) {
  return () => {
    let t = (seed = (seed + 0x6d2b79f5) | 0);
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

// ---------------------------------------------------------------------- the task of toy_env/arithmetic.py

export const textOf = (ids) => ids.filter((id) => id !== EOS).map((id) => TOKENS[id]).join("");

// The integer after the last "#", or null.
export function answer(completion) {
  const at = completion.lastIndexOf("#"), match = completion.slice(at + 1).match(/^([+-]?)0*([0-9]{1,9})$/);
  return at >= 0 && match ? Number(match[1] + match[2]) : null;
}

// The value of a chain such as 29+46-36, or null if it is not a problem of the task.
export function value(expression) {
  if (!/^[1-9]\d?([+-][1-9]\d?){1,4}$/.test(expression)) return null;
  let total = 0;
  for (const [part] of expression.matchAll(/[+-]?\d+/g)) {
    total += Number(part);
    if (Math.abs(Number(part)) > 50 || total < 0 || total > 99) return null;
  }
  return total;
}

export function drawProblem(random) { // one to four operations, by rejection; held-out problems included
  const integer = (n) => Math.floor(random() * n), operations = 1 + integer(4);
  for (;;) {
    let expression = String(1 + integer(50));
    for (let i = 0; i < operations; i++) expression += "+-"[integer(2)] + (1 + integer(50));
    if (value(expression) !== null) return expression;
  }
}
