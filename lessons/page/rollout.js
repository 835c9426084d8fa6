// Completions and their log-probabilities, as in toy_env/rollout.py: sampling them, and scoring
// them again. A row is one completion: {prompt, ids, logps}. Its lists are as long as the
// completion, EOS included, which the scripts express by a mask.

const LARGEST_PASS = 256; // tokens

function softmax(outputs, row, n) { // of a row of n logits
  const p = Array(n).fill(0), first = row * n;
  let most = -Infinity, sum = 0;
  for (let i = 0; i < n; i++) most = Math.max(most, outputs[first + i]);
  for (let i = 0; i < n; i++) sum += p[i] = Math.exp(outputs[first + i] - most);
  for (let i = 0; i < n; i++) p[i] /= sum;
  return p;
}

// The token that a random number u in [0, 1) picks from probabilities.
function pick(probabilities, u) {
  let sum = 0;
  const token = probabilities.findIndex((p) => (sum += p) > u);
  return token < 0 ? probabilities.length - 1 : token;
}

// A new text that begins with a prompt. starts: the prompts that the reader has already
function begin(reader, starts, prompt) {
  if (!starts[prompt]) {
    starts[prompt] = [];
    for (const token of encode(prompt)) reader.add(starts[prompt], token);
  }
  return [...starts[prompt]];
}

// One completion of each prompt from the full softmax at temperature 1. Each prompt has random
// numbers of its own, a function.
function complete(policy, prompts, randoms) {
  const starts = {}, { top } = wasm, most = [...new Set(prompts)].flatMap(encode).length;
  const reader = new Reader(policy, most + prompts.length * LONGEST,
    Math.max(most, prompts.length));
  const rows = prompts.map((prompt) => ({ prompt, ids: [], logps: [] }));
  let running = rows.map((row, i) =>
    ({ row, random: randoms[i], text: begin(reader, starts, row.prompt) }));
  for (const one of running) one.at = one.text.at(-1);
  for (let t = 0; t < LONGEST && running.length; t++) {
    const logits = reader.read();
    for (const { row, random, at } of running) {
      const p = softmax(logits, at, reader.columns), token = pick(p, random());
      row.ids.push(token);
      row.logps.push(Math.log(p[token]));
    }
    running = running.filter(({ row }) => row.ids[t] !== EOS);
    for (const one of running) one.at = reader.add(one.text, one.row.ids[t]);
  }
  wasm.top = top; // the reader's room is free again
  return rows;
}

const readers = {}; // by kind of network: new ones for every job would be 100 MB of garbage a step
// Read rows again -> for each its scores, one for each token: its log-probability, or the critic's
// value of the state before it. With `lossBackward`, from a row and its scores to the derivatives
// of its loss by them, the derivatives by the weights are added to the tensors `gradient`.
function score(policy, rows, lossBackward = null, gradient = null) {
  const kind = policy.embed.constructor.name + Boolean(policy.head), scores = [];
  const reader = (readers[kind] ??= new Reader(policy, LARGEST_PASS)), { columns } = reader;
  reader.policy = policy;
  while (scores.length < rows.length) { // as many rows at once as the largest pass holds
    const starts = {}, part = [];
    reader.clear();
    for (const row of rows.slice(scores.length)) {
      const start = encode(row.prompt).length;
      const added = (starts[row.prompt] ? 0 : start) + row.ids.length - 1;
      if (reader.tokens.length + added > LARGEST_PASS) break;
      const text = begin(reader, starts, row.prompt);
      for (const token of row.ids.slice(0, -1)) reader.add(text, token);
      part.push({ row, at: text.slice(start - 1) }); // the outputs that predict its tokens
    }
    const outputs = reader.read(), doutputs = new outputs.constructor(outputs.length);
    for (const { row, at } of part) {
      const p = at.map((i) => (policy.head ? [0] : softmax(outputs, i, columns)));
      const ids = policy.head ? row.ids.map(() => 0) : row.ids;
      scores.push(at.map((i, t) => (policy.head ? outputs[i] : Math.log(p[t][ids[t]]))));
      lossBackward?.(row, scores.at(-1)).forEach((derivative, t) => {
        for (let c = 0; c < columns; c++)
          doutputs[at[t] * columns + c] += derivative * ((c === ids[t]) - p[t][c]);
      });
    }
    if (lossBackward) reader.backward(doutputs, gradient);
  }
  return scores;
}
