// The transformer of toy_env/base_model in plain JavaScript: a Llama with 3 layers, forward and
// backward. Many texts are read at once, without padding: a batch is a list of tokens, and each
// token knows the text before it. Texts may share a beginning, so a group's prompt is read once. A
// matrix (n, columns) is one array, row after row, of float32 or float64 as the weights are.

const TOKENS = ["<pad>", "<bos>", "<eos>", ..."0123456789+-?=;#"];
const BOS = 1, EOS = 2, LONGEST = 56; // LONGEST: max_new_tokens of the scripts
const WIDTH = 64, INNER = 176, LAYERS = 3, HEADS = 4, HEAD = WIDTH / HEADS;
const EPSILON = 1e-6, THETA = 10000, MOST_POSITIONS = 128;

// The tensors of a network and their sizes, in the order in which the page holds them.
const SIZES = [["embed", TOKENS.length * WIDTH], ["norm", WIDTH]];
for (let l = 0; l < LAYERS; l++) {
  for (const name of ["q", "k", "v", "o"]) SIZES.push([name + l, WIDTH * WIDTH]);
  for (const name of ["gate", "up", "down"]) SIZES.push([name + l, INNER * WIDTH]);
  for (const name of ["norm_attention", "norm_mlp"]) SIZES.push([name + l, WIDTH]);
}
SIZES.push(["head", WIDTH], ["bias", 1]); // of PPO's critic; a policy ends before them

// The tensors by name: views of the weights, which are one array.
function tensors(weights) {
  let at = 0;
  const views = SIZES.map(([name, size]) => [name, weights.subarray(at, (at += size))]);
  return Object.fromEntries(views.filter(([, view]) => view.length));
}

// The policy's transformer under a head that is 0 everywhere
const criticOf = (weights) => weights.constructor.from([...weights, ...Array(WIDTH + 1).fill(0)]);

// A linear layer Y = X W^T, as in torch: X (n, inputs), W (outputs, inputs), Y (n, outputs)
function linear(Y, X, W, n, inputs = WIDTH, add = false) {
  product(Y, X, inputs, 1, W, true, n, W.length / inputs, inputs, add);
}

// RMSNorm: unit = x / root mean square, y = unit * scale. inverse (n,): 1 / root mean square
function normalise({ y, unit, inverse }, x, scale, n) {
  for (let i = 0, at = 0; i < n; i++) {
    inverse[i] = 1 / Math.sqrt(dot(x, at, x, at, WIDTH) / WIDTH + EPSILON);
    for (let c = 0; c < WIDTH; c++, at++) y[at] = (unit[at] = x[at] * inverse[i]) * scale[c];
  }
}

function normaliseBackward(dx, dscale, dy, { unit, inverse }, scale, n) { // adds to dx and dscale
  for (let i = 0; i < n; i++) {
    let along = 0;
    for (let c = 0, at = i * WIDTH; c < WIDTH; c++, at++) {
      dscale[c] += dy[at] * unit[at];
      along += dy[at] * scale[c] * unit[at];
    }
    for (let c = 0, at = i * WIDTH; c < WIDTH; c++, at++)
      dx[at] += inverse[i] * (dy[at] * scale[c] - unit[at] * along / WIDTH);
  }
}

const ANGLES = Float64Array.from({ length: MOST_POSITIONS * HEAD / 2 }, (_, at) =>
  Math.floor(at / (HEAD / 2)) * THETA ** (-2 * (at % (HEAD / 2)) / HEAD));
const COS = ANGLES.map(Math.cos), SIN = ANGLES.map(Math.sin);

// Rotary position embedding of x (n, WIDTH), in place: each head's halves are the two coordinates.
// direction -1 turns back.
function rotate(x, positions, direction) {
  for (let i = 0; i < positions.length; i++)
    for (let c = 0, angle = positions[i] * HEAD / 2; c < HEAD / 2; c++, angle++)
      for (let at = i * WIDTH + c; at < (i + 1) * WIDTH; at += HEAD) {
        const a = x[at], b = x[at + HEAD / 2], cos = COS[angle], sin = direction * SIN[angle];
        x[at] = a * cos - b * sin;
        x[at + HEAD / 2] = b * cos + a * sin;
      }
}

function dot(a, i, b, j, n) { // of n numbers from i and from j on
  let sum = 0;
  for (let c = 0; c < n; c++) sum += a[i + c] * b[j + c];
  return sum;
}

// Math.exp to 15 digits, in a third of the time: e^x is e^(n/64), from a table, by a short series
const FAR = 64 * 750; // beyond ±750 it is 0 or Infinity
const POWERS = Float64Array.from({ length: 2 * FAR + 1 }, (_, n) => Math.exp((n - FAR) / 64));
function exp(x) {
  const n = Math.min(Math.max(64 * x + FAR + 0.5, 0), 2 * FAR) | 0, r = x - (n - FAR) / 64;
  return POWERS[n] * (1 + r * (1 + r / 2 * (1 + r / 3 * (1 + r / 4 * (1 + r / 5)))));
}

// Softmax, in place, of the numbers of x at first, first + step, ..., before end
function softmax(x, first, end, step = 1, temperature = 1) {
  let most = -Infinity, sum = 0;
  for (let at = first; at < end; at += step) most = Math.max(most, x[at]);
  for (let at = first; at < end; at += step) sum += x[at] = exp((x[at] - most) / temperature);
  for (let at = first; at < end; at += step) x[at] /= sum;
}

// use(first, end) for each query and head: its numbers in an array (pairs, HEADS) are at first,
// first + HEADS, ..., before end
function eachHead(positions, use) {
  let end = 0;
  for (const position of positions) {
    const first = end;
    end += HEADS * (position + 1);
    for (let head = 0; head < HEADS; head++) use(first + head, end);
  }
}

// Causal attention: mixed (n, WIDTH) from queries (n, WIDTH), keys and values (all tokens, WIDTH).
// A pair is a query and a token that it sees, whose value has the weight shares (pairs, HEADS).
function attend({ mixed, shares, queries, keys, values }, { query, key, pairs }, positions) {
  dots(shares, queries, query, keys, key, pairs);
  eachHead(positions, (first, end) => softmax(shares, first, end, HEADS, Math.sqrt(HEAD)));
  mixed.fill(0, 0, positions.length * WIDTH);
  spread(mixed, query, shares, values, key, pairs);
}

function attendBackward(d, dmixed, layer, { query, key, pairs }, positions) {
  const { shares, queries, keys, values } = layer;
  for (const array of [d.queries, d.keys, d.values]) array.fill(0);
  spread(d.values, key, shares, dmixed, query, pairs);
  dots(d.shares, dmixed, query, values, key, pairs);
  eachHead(positions, (first, end) => { // the derivatives by the products of queries and keys
    let mean = 0;
    for (let at = first; at < end; at += HEADS) mean += shares[at] * d.shares[at];
    for (let at = first; at < end; at += HEADS)
      d.shares[at] = shares[at] * (d.shares[at] - mean) / Math.sqrt(HEAD);
  });
  spread(d.queries, query, d.shares, keys, key, pairs);
  spread(d.keys, key, d.shares, queries, query, pairs);
}

// Reads texts and keeps the keys and values of all tokens. A text is a list of the indices of its
// tokens; a copy of it is another text that begins alike.
class Reader {
  constructor(policy, capacity, width = capacity) { // most tokens in all, and in one `read`
    const kind = policy.embed.constructor;
    const array = (columns, rows = width) => room(kind, eightfold(rows) * columns);
    const arrays = (names, columns) =>
      Object.fromEntries(names.split(" ").map((name) => [name, array(columns)]));
    const norm = () => ({ ...arrays("y unit", WIDTH), inverse: array(1) });
    const shares = () => array(HEADS * MOST_POSITIONS);
    this.layers = Array.from({ length: LAYERS }, () => ({
      keys: array(WIDTH, capacity), values: array(WIDTH, capacity), attention: norm(),
      ...arrays("queries mixed", WIDTH), shares: shares(), mlp: norm(),
      ...arrays("gate sigmoid up gated", INNER),
    }));
    this.d = { ...arrays("x y queries keys values", WIDTH), ...arrays("gated gate up", INNER),
      shares: shares() }; // derivatives
    this.columns = policy.head ? 8 : eightfold(TOKENS.length);
    Object.assign(this, { policy, x: array(WIDTH), norm: norm(), outputs: array(this.columns),
      doutputs: array(this.columns) });
    const [query, key] = [0, 1].map(() => room(Int32Array, width * MOST_POSITIONS));
    this.seen = { query, key, pairs: 0 };
    this.clear();
  }

  clear() { Object.assign(this, { size: 0, tokens: [], positions: [] }); } // size: those read

  // one more token at the end of a text; -> its row in the outputs of the next `read`
  add(text, token) {
    const { size, tokens, positions, seen } = this, i = tokens.length;
    if (i === size) seen.pairs = 0;
    positions.push(text.length);
    text.push(i);
    for (const key of text) {
      seen.query[seen.pairs] = i - size;
      seen.key[seen.pairs++] = key;
    }
    return tokens.push(token) - 1 - size;
  }

  // Read what was added: (n, columns), the next token's probabilities or a critic's value, padded
  read() {
    const { columns, policy, x, size, norm, outputs, seen } = this;
    const tokens = this.tokens.slice(size), positions = this.positions.slice(size);
    const n = tokens.length;
    tokens.forEach((token, i) =>
      x.set(policy.embed.subarray(token * WIDTH, (token + 1) * WIDTH), i * WIDTH));
    this.layers.forEach((layer, l) => {
      const { attention, queries, mixed, mlp, gate, sigmoid, up, gated } = layer;
      const [keys, values] = [layer.keys, layer.values].map((all) => all.subarray(size * WIDTH));
      normalise(attention, x, policy["norm_attention" + l], n);
      linear(queries, attention.y, policy["q" + l], n);
      linear(keys, attention.y, policy["k" + l], n);
      linear(values, attention.y, policy["v" + l], n);
      rotate(queries, positions, 1);
      rotate(keys, positions, 1);
      attend(layer, seen, positions);
      linear(x, mixed, policy["o" + l], n, WIDTH, true);
      normalise(mlp, x, policy["norm_mlp" + l], n);
      linear(gate, mlp.y, policy["gate" + l], n);
      linear(up, mlp.y, policy["up" + l], n);
      for (let i = 0; i < n * INNER; i++) { // SwiGLU
        const share = sigmoid[i] = 1 / (1 + exp(-gate[i]));
        gated[i] = gate[i] * share * up[i];
      }
      linear(x, gated, policy["down" + l], n, INNER, true);
    });
    normalise(norm, x, policy.norm, n);
    linear(outputs, norm.y, policy.head ?? policy.embed, n); // a policy's embedding is tied
    for (let i = 0; i < n; i++)
      if (policy.head) outputs[i * columns] += policy.bias[0];
      else softmax(outputs, i * columns, i * columns + TOKENS.length);
    this.size += n;
    return outputs.subarray(0, n * columns);
  }

  // After the first `read`: from a loss's derivative `doutputs` add that by the weights to gradient
  backward(gradient) {
    const { columns, doutputs, policy, d, norm, tokens, positions, seen } = this, n = tokens.length;
    const back = (name, dX, dY, X, add = false, inputs = WIDTH) => { // dX = dY W, dW += dY^T X
      const W = policy[name], outputs = W.length / inputs, row = eightfold(outputs);
      product(dX, dY, row, 1, W, false, n, inputs, outputs, add);
      product(gradient[name], dY, 1, row, X, false, outputs, inputs, n, true);
    };
    const unnormalise = (name, norm) =>
      normaliseBackward(d.x, gradient[name], d.y, norm, policy[name], n);
    back(policy.head ? "head" : "embed", d.y, doutputs, norm.y);
    if (policy.head) for (let i = 0; i < n; i++) gradient.bias[0] += doutputs[i * columns];
    d.x.fill(0);
    unnormalise("norm", norm);
    for (let l = LAYERS - 1; l >= 0; l--) {
      const layer = this.layers[l], { attention, mixed, mlp, gate, sigmoid, up, gated } = layer;
      back("down" + l, d.gated, d.x, gated, false, INNER);
      for (let i = 0; i < n * INNER; i++) {
        d.up[i] = d.gated[i] * gate[i] * sigmoid[i];
        d.gate[i] = d.gated[i] * up[i] * sigmoid[i] * (1 + gate[i] * (1 - sigmoid[i]));
      }
      back("gate" + l, d.y, d.gate, mlp.y);
      back("up" + l, d.y, d.up, mlp.y, true);
      unnormalise("norm_mlp" + l, mlp);
      back("o" + l, d.y, d.x, mixed);
      attendBackward(d, d.y, layer, seen, positions);
      rotate(d.queries, positions, -1);
      rotate(d.keys, positions, -1);
      back("q" + l, d.y, d.queries, attention.y);
      back("k" + l, d.y, d.keys, attention.y, true);
      back("v" + l, d.y, d.values, attention.y, true);
      unnormalise("norm_attention" + l, attention);
    }
    tokens.forEach((token, i) => {
      for (let c = 0; c < WIDTH; c++) gradient.embed[token * WIDTH + c] += d.x[i * WIDTH + c];
    });
  }
}
