// The transformer of toy_env/base_model in plain JavaScript: a Llama with 3 layers, forward and backward.
//
// Many texts are read at once, without padding: a batch is a list of tokens, and each token knows the text before it. Texts
// may share a beginning, so a group's prompt is read once. A matrix (n, columns) is one array, row after row. All arrays are
// float32 or float64, whichever the weights are; sums of products are always float64. tests/test_engine.py compares both
// directions with torch.

export const TOKENS = ["<pad>", "<bos>", "<eos>", ..."0123456789+-?=;#"];
export const BOS = 1, EOS = 2, LONGEST = 56; // LONGEST: max_new_tokens of the scripts
const WIDTH = 64, INNER = 176, LAYERS = 3, HEADS = 4, HEAD = WIDTH / HEADS, EPSILON = 1e-6, THETA = 10000, MOST_POSITIONS = 128;

// ---------------------------------------------------------------------- weights

// The tensors of a policy in the order in which the page holds them: name, rows, columns.
const SHAPES = [["embed", TOKENS.length, WIDTH], ["norm", 1, WIDTH]];
for (let l = 0; l < LAYERS; l++) {
  for (const name of ["q", "k", "v", "o"]) SHAPES.push([name + l, WIDTH, WIDTH]);
  SHAPES.push(["gate" + l, INNER, WIDTH], ["up" + l, INNER, WIDTH], ["down" + l, WIDTH, INNER]);
  SHAPES.push(["norm_attention" + l, 1, WIDTH], ["norm_mlp" + l, 1, WIDTH]);
}
const CRITIC = [...SHAPES, ["head", 1, WIDTH], ["bias", 1, 1]]; // PPO's critic: a transformer of its own under a linear head
const count = (shapes) => shapes.reduce((sum, [, rows, columns]) => sum + rows * columns, 0);
export const WEIGHTS = count(SHAPES); // 152,192
const ROWS = SHAPES.reduce((sum, [, rows]) => sum + rows, 0);

// All policies of the page from its bytes: the base model in float32, then for each other policy one float32 scale per row
// and 8 bits per weight, the difference from the base.
export function readPolicies(base64, names) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;
  const base = new Float32Array(bytes, 0, WEIGHTS).slice();
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

// The tensors of a policy, or of a critic, by name: views of its weights, which are one array. `weightsOf` is the way back.
export function tensors(weights) {
  let at = 0;
  return Object.fromEntries((weights.length === WEIGHTS ? SHAPES : CRITIC).map(([name, rows, columns]) =>
    [name, weights.subarray(at, (at += rows * columns))]));
}

export const weightsOf = (policy) => new policy.embed.constructor(policy.embed.buffer);

export function criticOf(weights) { // a copy of the policy's transformer; its head starts at 0 everywhere
  const critic = new weights.constructor(count(CRITIC));
  critic.set(weights);
  return critic;
}

// ---------------------------------------------------------------------- matrix products

const DEPTH = 256, blockA = new Float64Array(4 * DEPTH), blockB = new Float64Array(INNER * DEPTH);

// C = A B, or C += A B: (rows, depth) x (depth, columns). A[i, k] is at i * aRow + k * aStep, B[k, j] at j * bColumn + k * bStep,
// so one function serves for transposed matrices too. It computes 4 x 4 elements of C at a time, so that each number that is
// loaded is used four times; for this, B and four rows of A are first copied into the order in which they are used. At the
// edge, indices stop at the last row or column, which is then computed more than once. An element of C is the same sum in the
// same order, whatever the number of rows: a token's log-probability does not depend on the batch.
export function product(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  for (let from = 0; from < depth; from += DEPTH) {
    const to = Math.min(from + DEPTH, depth), end = 4 * (to - from), keep = add || from > 0;
    for (let j = 0, at = 0; j < columns; j += 4) {
      const j0 = j * bColumn, j1 = Math.min(j + 1, columns - 1) * bColumn;
      const j2 = Math.min(j + 2, columns - 1) * bColumn, j3 = Math.min(j + 3, columns - 1) * bColumn;
      for (let k = from * bStep; k < to * bStep; k += bStep, at += 4) {
        blockB[at] = B[j0 + k]; blockB[at + 1] = B[j1 + k]; blockB[at + 2] = B[j2 + k]; blockB[at + 3] = B[j3 + k];
      }
    }
    for (let i = 0; i < rows; i += 4) {
      const i1 = Math.min(i + 1, rows - 1), i2 = Math.min(i + 2, rows - 1), i3 = Math.min(i + 3, rows - 1);
      for (let k = from * aStep, at = 0; at < end; k += aStep, at += 4) {
        blockA[at] = A[i * aRow + k]; blockA[at + 1] = A[i1 * aRow + k];
        blockA[at + 2] = A[i2 * aRow + k]; blockA[at + 3] = A[i3 * aRow + k];
      }
      const c0 = i * columns, c1 = i1 * columns, c2 = i2 * columns, c3 = i3 * columns;
      for (let j = 0, q = 0; j < columns; j += 4) {
        const j1 = Math.min(j + 1, columns - 1), j2 = Math.min(j + 2, columns - 1), j3 = Math.min(j + 3, columns - 1);
        let s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
        let s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
        if (keep) {
          s00 = C[c0 + j]; s01 = C[c0 + j1]; s02 = C[c0 + j2]; s03 = C[c0 + j3];
          s10 = C[c1 + j]; s11 = C[c1 + j1]; s12 = C[c1 + j2]; s13 = C[c1 + j3];
          s20 = C[c2 + j]; s21 = C[c2 + j1]; s22 = C[c2 + j2]; s23 = C[c2 + j3];
          s30 = C[c3 + j]; s31 = C[c3 + j1]; s32 = C[c3 + j2]; s33 = C[c3 + j3];
        }
        for (let p = 0; p < end; p += 4, q += 4) {
          const a0 = blockA[p], a1 = blockA[p + 1], a2 = blockA[p + 2], a3 = blockA[p + 3];
          const b0 = blockB[q], b1 = blockB[q + 1], b2 = blockB[q + 2], b3 = blockB[q + 3];
          s00 += a0 * b0; s01 += a0 * b1; s02 += a0 * b2; s03 += a0 * b3;
          s10 += a1 * b0; s11 += a1 * b1; s12 += a1 * b2; s13 += a1 * b3;
          s20 += a2 * b0; s21 += a2 * b1; s22 += a2 * b2; s23 += a2 * b3;
          s30 += a3 * b0; s31 += a3 * b1; s32 += a3 * b2; s33 += a3 * b3;
        }
        C[c0 + j] = s00; C[c0 + j1] = s01; C[c0 + j2] = s02; C[c0 + j3] = s03;
        C[c1 + j] = s10; C[c1 + j1] = s11; C[c1 + j2] = s12; C[c1 + j3] = s13;
        C[c2 + j] = s20; C[c2 + j1] = s21; C[c2 + j2] = s22; C[c2 + j3] = s23;
        C[c3 + j] = s30; C[c3 + j1] = s31; C[c3 + j2] = s32; C[c3 + j3] = s33;
      }
    }
  }
}

// A linear layer Y = X W^T, as in torch: X (n, inputs), W (outputs, inputs), Y (n, outputs); and what goes back through it.
function linear(Y, X, W, n, inputs, add = false) {
  product(Y, X, inputs, 1, W, inputs, 1, n, W.length / inputs, inputs, add);
}

function linearBackward(dX, dY, dW, X, W, n, inputs, add = false) { // dX = dY W, dW += dY^T X
  const outputs = W.length / inputs;
  product(dX, dY, outputs, 1, W, 1, inputs, n, inputs, outputs, add);
  product(dW, dY, 1, outputs, X, 1, inputs, outputs, inputs, n, true);
}

// ---------------------------------------------------------------------- the parts of a layer

// RMSNorm: unit = x / root mean square, y = unit * scale. All (n, WIDTH) but inverse (n,) = 1 / root mean square.
function normalise(y, unit, inverse, x, scale, n) {
  for (let i = 0; i < n; i++) {
    let squares = 0;
    for (let c = i * WIDTH; c < (i + 1) * WIDTH; c++) squares += x[c] * x[c];
    inverse[i] = 1 / Math.sqrt(squares / WIDTH + EPSILON);
    for (let c = 0, at = i * WIDTH; c < WIDTH; c++, at++) y[at] = (unit[at] = x[at] * inverse[i]) * scale[c];
  }
}

function normaliseBackward(dx, dscale, dy, unit, inverse, scale, n) { // adds to dx and dscale
  for (let i = 0; i < n; i++) {
    let dot = 0;
    for (let c = 0, at = i * WIDTH; c < WIDTH; c++, at++) {
      dscale[c] += dy[at] * unit[at];
      dot += dy[at] * scale[c] * unit[at];
    }
    for (let c = 0, at = i * WIDTH; c < WIDTH; c++, at++) dx[at] += inverse[i] * (dy[at] * scale[c] - unit[at] * dot / WIDTH);
  }
}

const ANGLES = Float64Array.from({ length: MOST_POSITIONS * HEAD / 2 }, (_, at) =>
  Math.floor(at / (HEAD / 2)) * THETA ** (-2 * (at % (HEAD / 2)) / HEAD));
const COS = ANGLES.map(Math.cos), SIN = ANGLES.map(Math.sin);

// Rotary position embedding of x (n, WIDTH), in place: each head's halves are the two coordinates. direction -1 turns back.
function rotate(x, positions, direction, n) {
  for (let i = 0; i < n; i++)
    for (let c = 0, angle = positions[i] * HEAD / 2; c < HEAD / 2; c++, angle++)
      for (let at = i * WIDTH + c; at < (i + 1) * WIDTH; at += HEAD) {
        const a = x[at], b = x[at + HEAD / 2], cos = COS[angle], sin = direction * SIN[angle];
        x[at] = a * cos - b * sin;
        x[at + HEAD / 2] = b * cos + a * sin;
      }
}

// Causal attention. queries, mixed (n, WIDTH); keys, values (all tokens, WIDTH). texts[i] lists the tokens that query i sees:
// those of its text up to its own position. shares holds their weights, for each query head by head.
function attend(mixed, shares, queries, keys, values, texts, positions, n) {
  for (let i = 0, first = 0; i < n; i++) {
    const text = texts[i], seen = positions[i] + 1;
    for (let head = i * WIDTH, offset = 0; offset < WIDTH; head += HEAD, offset += HEAD, first += seen) {
      let most = -Infinity, sum = 0;
      for (let j = 0; j < seen; j++) {
        const key = text[j] * WIDTH + offset;
        let dot = 0;
        for (let c = 0; c < HEAD; c++) dot += queries[head + c] * keys[key + c];
        shares[first + j] = dot /= Math.sqrt(HEAD);
        if (dot > most) most = dot;
      }
      for (let j = first; j < first + seen; j++) sum += shares[j] = Math.exp(shares[j] - most);
      mixed.fill(0, head, head + HEAD);
      for (let j = 0; j < seen; j++) {
        const value = text[j] * WIDTH + offset, share = shares[first + j] /= sum;
        for (let c = 0; c < HEAD; c++) mixed[head + c] += share * values[value + c];
      }
    }
  }
}

function attendBackward(dqueries, dkeys, dvalues, dmixed, shares, queries, keys, values, texts, positions, n) {
  for (const array of [dqueries, dkeys, dvalues]) array.fill(0, 0, n * WIDTH);
  const dshares = new Float64Array(MOST_POSITIONS);
  for (let i = 0, first = 0; i < n; i++) {
    const text = texts[i], seen = positions[i] + 1;
    for (let head = i * WIDTH, offset = 0; offset < WIDTH; head += HEAD, offset += HEAD, first += seen) {
      let mean = 0;
      for (let j = 0; j < seen; j++) {
        const value = text[j] * WIDTH + offset, share = shares[first + j];
        let dshare = 0;
        for (let c = 0; c < HEAD; c++) {
          dshare += dmixed[head + c] * values[value + c];
          dvalues[value + c] += share * dmixed[head + c];
        }
        mean += share * (dshares[j] = dshare);
      }
      for (let j = 0; j < seen; j++) {
        const key = text[j] * WIDTH + offset, ddot = shares[first + j] * (dshares[j] - mean) / Math.sqrt(HEAD);
        for (let c = 0; c < HEAD; c++) {
          dqueries[head + c] += ddot * keys[key + c];
          dkeys[key + c] += ddot * queries[head + c];
        }
      }
    }
  }
}

// ---------------------------------------------------------------------- reading texts

// Reads texts and keeps the keys and values of all tokens. A text is a list of the indices of its tokens; a copy of it,
// text.slice(), is another text that begins alike.
export class Reader {
  // capacity: most tokens in all; width: most tokens in one `read`. With learns, `backward` can follow a single `read`.
  constructor(policy, capacity, width = capacity, learns = false) {
    const array = (rows, columns) => new policy.embed.constructor(rows * columns);
    const activations = () => ({
      a: array(width, WIDTH), unit_a: array(width, WIDTH), inverse_a: array(width, 1), queries: array(width, WIDTH),
      shares: array(width, HEADS * MOST_POSITIONS), mixed: array(width, WIDTH),
      m: array(width, WIDTH), unit_m: array(width, WIDTH), inverse_m: array(width, 1),
      gate: array(width, INNER), sigmoid: array(width, INNER), up: array(width, INNER), gated: array(width, INNER),
    });
    const shared = learns || activations();
    this.layers = Array.from({ length: LAYERS }, () =>
      ({ keys: array(capacity, WIDTH), values: array(capacity, WIDTH), ...(learns ? activations() : shared) }));
    const [x, y, unit] = [1, 2, 3].map(() => array(width, WIDTH));
    Object.assign(this, { policy, x, y, unit, inverse: array(width, 1), columns: policy.head ? 1 : TOKENS.length });
    this.outputs = array(width, this.columns);
    if (learns) {
      this.d = Object.fromEntries(["x", "y", "queries", "keys", "values"].map((name) => [name, array(width, WIDTH)]));
      for (const name of ["gated", "gate", "up"]) this.d[name] = array(width, INNER);
    }
    this.clear();
  }

  clear() { Object.assign(this, { tokens: [], texts: [], positions: [], size: 0 }); } // those that are not read yet; size: those that are

  add(text, token) { // one more token at the end of a text; -> its row in the outputs of the next `read`
    this.texts.push(text);
    this.positions.push(text.length);
    text.push(this.size + this.tokens.length);
    return this.tokens.push(token) - 1;
  }

  // Read the tokens that were added: (n, vocabulary), the logits of what follows each; in a critic (n, 1), its value there.
  read() {
    const { policy, x, y, texts, positions, tokens } = this, n = tokens.length, from = this.size * WIDTH;
    tokens.forEach((token, i) => x.set(policy.embed.subarray(token * WIDTH, (token + 1) * WIDTH), i * WIDTH));
    this.layers.forEach((layer, l) => {
      const { a, queries, keys, values, mixed, m, gate, sigmoid, up, gated } = layer, newKeys = keys.subarray(from);
      normalise(a, layer.unit_a, layer.inverse_a, x, policy["norm_attention" + l], n);
      linear(queries, a, policy["q" + l], n, WIDTH);
      linear(newKeys, a, policy["k" + l], n, WIDTH);
      linear(values.subarray(from), a, policy["v" + l], n, WIDTH);
      rotate(queries, positions, 1, n);
      rotate(newKeys, positions, 1, n);
      attend(mixed, layer.shares, queries, keys, values, texts, positions, n);
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
    this.last = { texts, positions, tokens };
    Object.assign(this, { tokens: [], texts: [], positions: [], size: this.size + n });
    return this.outputs.subarray(0, n * this.columns);
  }

  // After one `read`: add to the tensors `gradient` the derivative of a loss, from its derivative by the outputs.
  backward(doutputs, gradient) {
    const { policy, d, last: { texts, positions, tokens } } = this, n = tokens.length;
    linearBackward(d.y, doutputs, gradient.head ?? gradient.embed, this.y, policy.head ?? policy.embed, n, WIDTH);
    if (policy.head) for (let i = 0; i < n; i++) gradient.bias[0] += doutputs[i];
    d.x.fill(0, 0, n * WIDTH);
    normaliseBackward(d.x, gradient.norm, d.y, this.unit, this.inverse, policy.norm, n);
    for (let l = LAYERS - 1; l >= 0; l--) {
      const layer = this.layers[l], { gate, sigmoid, up } = layer;
      const through = (name, dX, dY, X, inputs, add) => linearBackward(dX, dY, gradient[name + l], X, policy[name + l], n, inputs, add);
      through("down", d.gated, d.x, layer.gated, INNER);
      for (let i = 0; i < n * INNER; i++) {
        d.up[i] = d.gated[i] * gate[i] * sigmoid[i];
        d.gate[i] = d.gated[i] * up[i] * sigmoid[i] * (1 + gate[i] * (1 - sigmoid[i]));
      }
      through("gate", d.y, d.gate, layer.m, WIDTH);
      through("up", d.y, d.up, layer.m, WIDTH, true);
      normaliseBackward(d.x, gradient["norm_mlp" + l], d.y, layer.unit_m, layer.inverse_m, policy["norm_mlp" + l], n);
      through("o", d.y, d.x, layer.mixed, WIDTH);
      attendBackward(d.queries, d.keys, d.values, d.y, layer.shares, layer.queries, layer.keys, layer.values, texts, positions, n);
      rotate(d.queries, positions, -1, n);
      rotate(d.keys, positions, -1, n);
      through("q", d.y, d.queries, layer.a, WIDTH);
      through("k", d.y, d.keys, layer.a, WIDTH, true);
      through("v", d.y, d.values, layer.a, WIDTH, true);
      normaliseBackward(d.x, gradient["norm_attention" + l], d.y, layer.unit_a, layer.inverse_a, policy["norm_attention" + l], n);
    }
    tokens.forEach((token, i) => {
      for (let c = 0; c < WIDTH; c++) gradient.embed[token * WIDTH + c] += d.x[i * WIDTH + c];
    });
  }
}
