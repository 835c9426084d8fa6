// The transformer of toy_env/base_model in plain JavaScript: a Llama with 3 layers, forward and
// backward.
//
// Many texts are read at once, without padding: a batch is a list of tokens, and each token knows
// the text before it. Texts may share a beginning, so a group's prompt is read once. A matrix (n,
// columns) is one array, row after row. All arrays are float32 or float64, whichever the weights
// are; sums of products are always float64. tests/test_page_training.py compares both directions
// with torch.

import { product } from "./product.js";

export const TOKENS = ["<pad>", "<bos>", "<eos>", ..."0123456789+-?=;#"];
export const BOS = 1, EOS = 2, LONGEST = 56; // LONGEST: max_new_tokens of the scripts
const WIDTH = 64, INNER = 176, LAYERS = 3, HEADS = 4, HEAD = WIDTH / HEADS, EPSILON = 1e-6,
  THETA = 10000, MOST_POSITIONS = 128;

// ---------------------------------------------------------------------- weights

// The tensors of a policy in the order in which the page holds them: name, rows, columns.
const SHAPES = [["embed", TOKENS.length, WIDTH], ["norm", 1, WIDTH]];
for (let l = 0; l < LAYERS; l++) {
  for (const name of ["q", "k", "v", "o"]) SHAPES.push([name + l, WIDTH, WIDTH]);
  SHAPES.push(["gate" + l, INNER, WIDTH], ["up" + l, INNER, WIDTH], ["down" + l, WIDTH, INNER]);
  SHAPES.push(["norm_attention" + l, 1, WIDTH], ["norm_mlp" + l, 1, WIDTH]);
}
// PPO's critic: a transformer of its own under a linear head
const CRITIC = [...SHAPES, ["head", 1, WIDTH], ["bias", 1, 1]];
const count = (shapes) => shapes.reduce((sum, [, rows, columns]) => sum + rows * columns, 0);
export const WEIGHTS = count(SHAPES); // 152,192

// The base model's weights from the page's text, float32 in base64.
export const readWeights = (base64) =>
  new Float32Array(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer);

// The tensors of a policy, or of a critic, by name: views of its weights, which are one array.
export function tensors(weights) {
  let at = 0;
  return Object.fromEntries((weights.length === WEIGHTS ? SHAPES
    : CRITIC).map(([name, rows, columns]) =>
    [name, weights.subarray(at, (at += rows * columns))]));
}

// a copy of the policy's transformer; its head starts at 0 everywhere
export function criticOf(weights) {
  const critic = new weights.constructor(count(CRITIC));
  critic.set(weights);
  return critic;
}

// ---------------------------------------------------------------------- matrix products

// A linear layer Y = X W^T, as in torch: X (n, inputs), W (outputs, inputs), Y (n, outputs); and
// what goes back through it.
function linear(Y, X, W, n, inputs, add = false) {
  product(Y, X, inputs, 1, W, inputs, 1, n, W.length / inputs, inputs, add);
}

function linearBackward(dX, dY, dW, X, W, n, inputs, add = false) { // dX = dY W, dW += dY^T X
  const outputs = W.length / inputs;
  product(dX, dY, outputs, 1, W, 1, inputs, n, inputs, outputs, add);
  product(dW, dY, 1, outputs, X, 1, inputs, outputs, inputs, n, true);
}

// ---------------------------------------------------------------------- the parts of a layer

// RMSNorm: unit = x / root mean square, y = unit * scale. All (n, WIDTH) but inverse (n,) = 1 /
// root mean square.
function normalise(y, unit, inverse, x, scale, n) {
  for (let i = 0; i < n; i++) {
    let squares = 0;
    for (let c = i * WIDTH; c < (i + 1) * WIDTH; c++) squares += x[c] * x[c];
    inverse[i] = 1 / Math.sqrt(squares / WIDTH + EPSILON);
    for (let c = 0, at = i * WIDTH; c < WIDTH;
    c++, at++) y[at] = (unit[at] = x[at] * inverse[i]) * scale[c];
  }
}

function normaliseBackward(dx, dscale, dy, unit, inverse, scale, n) { // adds to dx and dscale
  for (let i = 0; i < n; i++) {
    let dot = 0;
    for (let c = 0, at = i * WIDTH; c < WIDTH; c++, at++) {
      dscale[c] += dy[at] * unit[at];
      dot += dy[at] * scale[c] * unit[at];
    }
    for (let c = 0, at = i * WIDTH; c < WIDTH;
    c++, at++) dx[at] += inverse[i] * (dy[at] * scale[c] - unit[at] * dot / WIDTH);
  }
}

const ANGLES = Float64Array.from({ length: MOST_POSITIONS * HEAD / 2 }, (_, at) =>
  Math.floor(at / (HEAD / 2)) * THETA ** (-2 * (at % (HEAD / 2)) / HEAD));
const COS = ANGLES.map(Math.cos), SIN = ANGLES.map(Math.sin);

// Rotary position embedding of x (n, WIDTH), in place: each head's halves are the two coordinates.
// direction -1 turns back.
function rotate(x, positions, direction, n) {
  for (let i = 0; i < n; i++)
    for (let c = 0, angle = positions[i] * HEAD / 2; c < HEAD / 2; c++, angle++)
      for (let at = i * WIDTH + c; at < (i + 1) * WIDTH; at += HEAD) {
        const a = x[at], b = x[at + HEAD / 2], cos = COS[angle], sin = direction * SIN[angle];
        x[at] = a * cos - b * sin;
        x[at + HEAD / 2] = b * cos + a * sin;
      }
}

// Causal attention: mixed (n, WIDTH) from queries (n, WIDTH), keys and values (all tokens, WIDTH).
// texts[i] lists the tokens that query i sees: those of its text up to its own position. shares
// holds their weights, for each query head by head.
function attend({ mixed, shares, queries, keys, values }, texts, positions, n) {
  for (let i = 0, first = 0; i < n; i++) {
    const text = texts[i], seen = positions[i] + 1;
    for (let head = i * WIDTH, offset = 0; offset < WIDTH;
    head += HEAD, offset += HEAD, first += seen) {
      let most = -Infinity, sum = 0;
      for (let j = 0; j < seen; j++) {
        let dot = 0;
        for (let c = head, key = text[j] * WIDTH + offset; c < head + HEAD;
        c++, key++) dot += queries[c] * keys[key];
        shares[first + j] = dot / Math.sqrt(HEAD);
        most = Math.max(most, shares[first + j]);
      }
      for (let j = first; j < first + seen; j++) sum += shares[j] = Math.exp(shares[j] - most);
      mixed.fill(0, head, head + HEAD);
      for (let j = 0; j < seen; j++) {
        const share = shares[first + j] /= sum;
        for (let c = head, value = text[j] * WIDTH + offset; c < head + HEAD;
        c++, value++) mixed[c] += share * values[value];
      }
    }
  }
}

function attendBackward({ queries: dqueries, keys: dkeys, values: dvalues }, dmixed, layer, texts,
  positions, n) {
  const { shares, queries, keys, values } = layer, dshares = new Float64Array(MOST_POSITIONS);
  for (const array of [dqueries, dkeys, dvalues]) array.fill(0);
  for (let i = 0, first = 0; i < n; i++) {
    const text = texts[i], seen = positions[i] + 1;
    for (let head = i * WIDTH, offset = 0; offset < WIDTH;
    head += HEAD, offset += HEAD, first += seen) {
      let mean = 0;
      for (let j = 0; j < seen; j++) {
        const share = shares[first + j];
        let dshare = 0;
        for (let c = head, value = text[j] * WIDTH + offset; c < head + HEAD; c++, value++) {
          dshare += dmixed[c] * values[value];
          dvalues[value] += share * dmixed[c];
        }
        mean += share * (dshares[j] = dshare);
      }
      for (let j = 0; j < seen; j++) {
        const ddot = shares[first + j] * (dshares[j] - mean) / Math.sqrt(HEAD);
        for (let c = head, key = text[j] * WIDTH + offset; c < head + HEAD; c++, key++) {
          dqueries[c] += ddot * keys[key];
          dkeys[key] += ddot * queries[c];
        }
      }
    }
  }
}

// ---------------------------------------------------------------------- reading texts

// Reads texts and keeps the keys and values of all tokens. A text is a list of the indices of its
// tokens; a copy of it is another text that begins alike.
export class Reader {
  constructor(policy, capacity, width = capacity) { // most tokens in all, and in one `read`
    const array = (columns, rows = width) => new policy.embed.constructor(rows * columns);
    const arrays = (names, columns) => Object.fromEntries(names.split(" ").map((name) => [name,
      array(columns)]));
    this.layers = Array.from({ length: LAYERS }, () => ({
      keys: array(WIDTH, capacity), values: array(WIDTH, capacity),
        shares: array(HEADS * MOST_POSITIONS),
      ...arrays("a unit_a queries mixed m unit_m", WIDTH),
        ...arrays("gate sigmoid up gated", INNER), ...arrays("inverse_a inverse_m", 1),
    }));
    // derivatives
    this.d = { ...arrays("x y queries keys values", WIDTH), ...arrays("gated gate up", INNER) };
    this.columns = policy.head ? 1 : TOKENS.length;
    Object.assign(this, { policy, ...arrays("x y unit", WIDTH), inverse: array(1),
      outputs: array(this.columns) });
    this.clear();
  }

  // tokens read; those to read, and their places
  clear() { Object.assign(this, { size: 0, tokens: [], texts: [], positions: [] }); }

  // one more token at the end of a text; -> its row in the outputs of the next `read`
  add(text, token) {
    this.texts.push(text);
    this.positions.push(text.length);
    text.push(this.size + this.tokens.length);
    return this.tokens.push(token) - 1;
  }

  // Read the tokens that were added: (n, vocabulary), the logits of what follows each; in a critic
  // (n, 1), the value there.
  read() {
    const { policy, x, y, texts, positions, tokens } = this, n = tokens.length,
      from = this.size * WIDTH;
    tokens.forEach((token, i) => x.set(policy.embed.subarray(token * WIDTH, (token + 1) * WIDTH),
      i * WIDTH));
    this.layers.forEach((layer, l) => {
      const { a, queries, keys, values, mixed, m, gate, sigmoid, up, gated } = layer,
        new_keys = keys.subarray(from);
      normalise(a, layer.unit_a, layer.inverse_a, x, policy["norm_attention" + l], n);
      linear(queries, a, policy["q" + l], n, WIDTH);
      linear(new_keys, a, policy["k" + l], n, WIDTH);
      linear(values.subarray(from), a, policy["v" + l], n, WIDTH);
      rotate(queries, positions, 1, n);
      rotate(new_keys, positions, 1, n);
      attend(layer, texts, positions, n);
      linear(x, mixed, policy["o" + l], n, WIDTH, true);
      normalise(m, layer.unit_m, layer.inverse_m, x, policy["norm_mlp" + l], n);
      linear(gate, m, policy["gate" + l], n, WIDTH);
      linear(up, m, policy["up" + l], n, WIDTH);
      for (let i = 0; i < n * INNER; i++) { // SwiGLU
        sigmoid[i] = 1 / (1 + Math.exp(-gate[i]));
        gated[i] = gate[i] * sigmoid[i] * up[i];
      }
      linear(x, gated, policy["down" + l], n, INNER, true);
    });
    normalise(y, this.unit, this.inverse, x, policy.norm, n);
    linear(this.outputs, y, policy.head ?? policy.embed, n, WIDTH); // a policy's embedding is tied
    if (policy.head) for (let i = 0; i < n; i++) this.outputs[i] += policy.bias[0];
    Object.assign(this, { size: this.size + n, last: { texts, positions, tokens }, tokens: [],
      texts: [], positions: [] });
    return this.outputs.subarray(0, n * this.columns);
  }

  // After the first `read`: from a loss's derivative by the outputs add its derivative by the
  // weights to the tensors `gradient`.
  backward(doutputs, gradient) {
    const { policy, d, last: { texts, positions, tokens } } = this, n = tokens.length;
    const back = (name, dX, dY, X, inputs, add) => linearBackward(dX, dY, gradient[name], X,
      policy[name], n, inputs, add);
    back(policy.head ? "head" : "embed", d.y, doutputs, this.y, WIDTH);
    if (policy.head) for (let i = 0; i < n; i++) gradient.bias[0] += doutputs[i];
    d.x.fill(0);
    normaliseBackward(d.x, gradient.norm, d.y, this.unit, this.inverse, policy.norm, n);
    for (let l = LAYERS - 1; l >= 0; l--) {
      const layer = this.layers[l], { gate, sigmoid, up } = layer;
      back("down" + l, d.gated, d.x, layer.gated, INNER);
      for (let i = 0; i < n * INNER; i++) {
        d.up[i] = d.gated[i] * gate[i] * sigmoid[i];
        d.gate[i] = d.gated[i] * up[i] * sigmoid[i] * (1 + gate[i] * (1 - sigmoid[i]));
      }
      back("gate" + l, d.y, d.gate, layer.m, WIDTH);
      back("up" + l, d.y, d.up, layer.m, WIDTH, true);
      normaliseBackward(d.x, gradient["norm_mlp" + l], d.y, layer.unit_m, layer.inverse_m,
        policy["norm_mlp" + l], n);
      back("o" + l, d.y, d.x, layer.mixed, WIDTH);
      attendBackward(d, d.y, layer, texts, positions, n);
      rotate(d.queries, positions, -1, n);
      rotate(d.keys, positions, -1, n);
      back("q" + l, d.y, d.queries, layer.a, WIDTH);
      back("k" + l, d.y, d.keys, layer.a, WIDTH, true);
      back("v" + l, d.y, d.values, layer.a, WIDTH, true);
      normaliseBackward(d.x, gradient["norm_attention" + l], d.y, layer.unit_a, layer.inverse_a,
        policy["norm_attention" + l], n);
    }
    tokens.forEach((token, i) => {
      for (let c = 0; c < WIDTH; c++) gradient.embed[token * WIDTH + c] += d.x[i * WIDTH + c];
    });
  }
}
