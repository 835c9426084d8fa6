// Completions and their log-probabilities, as in toy_env/rollout.py: sampling them, and scoring
// them again. A row is one completion: {prompt, ids, logps, entropies, truncated}. Its lists are as
// long as the completion, EOS included, which the scripts express by a mask.

import { encode } from "./arithmetic.js";
import { EOS, LONGEST, Reader, TOKENS } from "./model.js";

const V = TOKENS.length;
// tokens that are read at once where a gradient follows: their activations fit a processor's cache
const LARGEST_PASS = 128;

export function softmax(logits) {
  const p = Array(logits.length).fill(0);
  let most = -Infinity, sum = 0;
  for (let i = 0; i < p.length; i++) most = Math.max(most, logits[i]);
  for (let i = 0; i < p.length; i++) sum += p[i] = Math.exp(logits[i] - most);
  for (let i = 0; i < p.length; i++) p[i] /= sum;
  return p;
}

// The token that a random number u in [0, 1) picks from probabilities.
export function pick(probabilities, u) {
  let sum = 0;
  const token = probabilities.findIndex((p) => (sum += p) > u);
  return token < 0 ? probabilities.length - 1 : token;
}

// One completion of each prompt from the full softmax at temperature 1: yields the rows after each
// token, until all have ended. random(i) gives the random numbers of row i.
export function* complete(policy, prompts, random) {
  const different = [...new Set(prompts)], tokens = different.flatMap(encode).length, texts = {},
    last = {};
  const reader = new Reader(policy, tokens + prompts.length * (LONGEST - 1),
    Math.max(tokens, prompts.length));
  for (const prompt of different) for (const token of encode(prompt)) last[prompt] =
    reader.add((texts[prompt] ??= []), token);
  const rows = prompts.map((prompt) => ({ prompt, ids: [], logps: [], entropies: [],
    truncated: true }));
  let running = rows.map((row, i) => ({ row, i, text: [...texts[row.prompt]],
    at: last[row.prompt] }));
  for (let t = 0; t < LONGEST && running.length; t++) {
    const logits = reader.read();
    for (const { row, i, at } of running) {
      const p = softmax(logits.subarray(at * V, (at + 1) * V)), token = pick(p, random(i));
      row.ids.push(token);
      row.logps.push(Math.log(p[token]));
      row.entropies.push(-p.reduce((sum, p) => sum + (p && p * Math.log(p)), 0));
      row.truncated = token !== EOS;
    }
    running = running.filter(({ row }) => row.truncated);
    if (t + 1 < LONGEST) for (const one of running) one.at = reader.add(one.text, one.row.ids[t]);
    yield rows;
  }
}

// readers whose arrays can be used again; new ones for every job would be 100 MB of garbage a step
const spare = {};

// Read rows again, as many at once as the largest pass holds. Yields after each pass {reader,
// outputs, part}; part lists its rows, each with `at`: for every token of the completion the row of
// the outputs that stands before it, and so predicts it.
export function* passes(policy, rows) {
  const kind = policy.embed.constructor.name + Boolean(policy.head),
    reader = spare[kind] ?? new Reader(policy, LARGEST_PASS);
  delete spare[kind];
  reader.policy = policy;
  for (let from = 0, to = 0; from < rows.length; from = to) {
    const texts = {}, part = [];
    reader.clear();
    for (; to < rows.length; to++) {
      const { prompt, ids } = rows[to], start = encode(prompt);
      if (reader.tokens.length + (texts[prompt] ? 0 : start.length) +
        ids.length - 1 > LARGEST_PASS) break;
      if (!texts[prompt]) {
        texts[prompt] = [];
        for (const token of start) reader.add(texts[prompt], token);
      }
      const text = [...texts[prompt]];
      for (const token of ids.slice(0, -1)) reader.add(text, token);
      part.push({ row: rows[to], at: text.slice(start.length - 1) });
    }
    yield { reader, outputs: reader.read(), part };
  }
  spare[kind] = reader;
}

// For each token of a pass's rows one number: its log-probability, or the critic's value of the
// state before it.
export function scoresOf({ reader: { columns: V }, outputs, part }) {
  return part.map(({ row, at }) => at.map((i, t) =>
    (V === 1 ? outputs[i] : Math.log(softmax(outputs.subarray(i * V, (i + 1) * V))[row.ids[t]]))));
}

// by the scores -> by the outputs
export function scoresBackward({ reader: { columns: V }, outputs, part }, derivatives) {
  const doutputs = new outputs.constructor(outputs.length);
  part.forEach(({ row, at }, r) => at.forEach((i, t) => {
    const p = V === 1 ? [0] : softmax(outputs.subarray(i * V, (i + 1) * V)), token = V === 1 ? 0
      : row.ids[t];
    for (let c = 0; c < V; c++) doutputs[i * V + c] += derivatives[r][t] * ((c === token) - p[c]);
  }));
  return doutputs;
}
