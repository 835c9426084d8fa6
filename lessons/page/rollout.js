// Completions and their log-probabilities, as in toy_env/rollout.py: sampling them, and scoring
// them again. A row is one completion: {prompt, ids, logps}. Its lists are as long as the
// completion, EOS included, which the scripts express by a mask.

const LARGEST_PASS = 256; // tokens

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

// One completion of each prompt, from the full softmax; each has its random numbers, a function.
function complete(policy, prompts, randoms) {
  const starts = {}, { top } = wasm, most = [...new Set(prompts)].flatMap(encode).length;
  const reader = new Reader(policy, most + prompts.length * LONGEST,
    Math.max(most, prompts.length));
  const rows = prompts.map((prompt) => ({ prompt, ids: [], logps: [] }));
  let running = rows.map((row, i) =>
    ({ row, random: randoms[i], text: begin(reader, starts, row.prompt) }));
  for (const one of running) one.at = one.text.at(-1);
  for (let t = 0; t < LONGEST && running.length; t++) {
    const outputs = reader.read(), { columns } = reader;
    for (const { row, random, at } of running) {
      const p = outputs.subarray(at * columns, at * columns + TOKENS.length);
      const token = pick(p, random());
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
    const outputs = reader.read(), doutputs = reader.doutputs.fill(0);
    for (const { row, at } of part) {
      const { ids } = row, p = (t, c) => outputs[at[t] * columns + c];
      scores.push(ids.map((id, t) => (policy.head ? p(t, 0) : Math.log(p(t, id)))));
      lossBackward?.(row, scores.at(-1)).forEach((derivative, t) => {
        const by = (c) => (policy.head ? 1 : (c === ids[t]) - p(t, c));
        for (let c = 0; c < (policy.head ? 1 : TOKENS.length); c++)
          doutputs[at[t] * columns + c] += derivative * by(c);
      });
    }
    if (lossBackward) reader.backward(gradient);
  }
  return scores;
}
