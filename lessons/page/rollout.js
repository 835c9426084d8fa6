// Completions and their log-probabilities, as in toy_env/rollout.py: sampling them, and scoring
// them again. A row is one completion: {prompt, ids, logps}. Its lists are as long as the
// completion, EOS included, which the scripts express by a mask.

import { encode } from "./arithmetic.js";
import { EOS, LONGEST, Reader } from "./model.js";

const LARGEST_PASS = 128; // tokens, whose activations fit a processor's cache

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
export function complete(policy, prompts, randoms) {
  const starts = {}, most = [...new Set(prompts)].flatMap(encode).length;
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
  return rows;
}

const readers = {}; // by kind of network: new ones for every job would be 100 MB of garbage a step

// Read rows again, as many at once as the largest pass holds. Yields after each pass {reader,
// outputs, part}; part lists its rows, each with `at`: for every token of the completion the row of
// the outputs that stands before it, and so predicts it.
export function* passes(policy, rows) {
  const kind = policy.embed.constructor.name + Boolean(policy.head);
  const reader = (readers[kind] ??= new Reader(policy, LARGEST_PASS));
  reader.policy = policy;
  for (let from = 0, to = 0; from < rows.length; from = to) {
    const starts = {}, part = [];
    reader.clear();
    for (; to < rows.length; to++) {
      const row = rows[to], start = encode(row.prompt).length;
      const added = (starts[row.prompt] ? 0 : start) + row.ids.length - 1;
      if (reader.tokens.length + added > LARGEST_PASS) break;
      const text = begin(reader, starts, row.prompt);
      for (const token of row.ids.slice(0, -1)) reader.add(text, token);
      part.push({ row, at: text.slice(start - 1) });
    }
    yield { reader, outputs: reader.read(), part };
  }
}

// For each token of a pass's rows one number: its log-probability, or the critic's value of the
// state before it.
export function scoresOf({ reader: { columns }, outputs, part }) {
  return part.map(({ row, at }) => at.map((i, t) =>
    (columns === 1 ? outputs[i] : Math.log(softmax(outputs, i, columns)[row.ids[t]]))));
}

// by the scores -> by the outputs
export function scoresBackward({ reader: { columns }, outputs, part }, derivatives) {
  const doutputs = new outputs.constructor(outputs.length);
  part.forEach(({ row, at }, r) => at.forEach((i, t) => {
    const [p, token] = columns === 1 ? [[0], 0] : [softmax(outputs, i, columns), row.ids[t]];
    for (let c = 0; c < columns; c++)
      doutputs[i * columns + c] += derivatives[r][t] * ((c === token) - p[c]);
  }));
  return doutputs;
}
