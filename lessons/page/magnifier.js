// The magnifier: one group of the strip, letter by letter, and the numbers behind a token.

const $ = (id) => document.getElementById(id);

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// The colour of what is pushed, and a bar's length; 1 is the fullest and the longest.
const shade = (push, length = 1) => ({ className: push > 0 ? "pos" : push < 0 ? "neg" : "",
  style: `--share: ${Math.min(1, Math.abs(push))}; --length: ${Math.min(1, length)}` });

const percentOf = (share) => Math.round(100 * share);
const typeset = (expression) => expression.replaceAll("-", "−");
const letter = (id) => (id === null ? "·" : id === EOS ? "∎" : TOKENS[id]);
const percent = (logp) => `${Number((100 * Math.exp(logp)).toPrecision(2))}\u00a0%`;

function signed(x, digits = 2) { // 0.5 as +0.50
  const size = Math.abs(x).toFixed(digits);
  return Number(size) ? (x < 0 ? "−" : "+") + size : "0";
}

function title(group, column) {
  const { prompt } = group[0], k = sum(rewardsOf(group)), problem = prompt?.slice(0, -1);
  return `Step ${column + 1}${problem ? ` · ${typeset(problem)} = ${value(problem)}` : ""}: ` +
    `${k} of ${group.length} right`;
}

// In a sentence: what the verdicts make of a group.
function explain(group, results, algorithm) {
  const rewards = rewardsOf(group), G = group.length, k = sum(rewards);
  if (!isMixed(group) && !results.some((row) => row.advantage))
    return `All ${k ? "right" : "wrong"}: silent. Every advantage is 0, ` +
      (algorithm.dynamic_sampling ? "and another group replaces it." : "and nothing is pushed.");
  const A = (R) => signed(mean(results.filter((_, i) => rewards[i] === R).map((row) =>
    row.advantage)));
  const each = [k && `right ones get the advantage A\u00a0=\u00a0${A(1)}`,
    G - k && `wrong ones ${A(0)}`].filter(Boolean);
  const sigma = Number((Math.sqrt(k * (G - k)) / G).toFixed(2));
  const spread = algorithm.sigma ? `σ, the verdicts' spread, is ${sigma}` : "No division by σ";
  return `${spread}: ${each.join(", ")}.`;
}

// A row a completion: verdict, advantage, tokens coloured by their push. full: the fullest push
function rowsOf(group, results, full, flip, point) {
  return group.map(({ ids, reward, verdict }, i) => {
    const text = ids.map(letter), A = signed(results[i].advantage), isFlipped = reward !== verdict;
    const ariaLabel = `completion ${i + 1}: ${reward ? "right" : "wrong"}, advantage ${A}` +
      `${isFlipped ? ", flipped by you" : ""}; press to flip, arrow keys for its tokens`;
    const className = `${reward ? "up" : "down"}${isFlipped ? " flipped" : ""}`;
    const button = element("button", { className, ariaLabel, onclick: () => flip(i) },
      reward ? "✓" : "✗", element("span", {}, A));
    const tokens = results[i].tokens.map((weight, t) =>
      element("i", { ...shade(weight / full), onpointerenter: () => point(i, t) }, text[t]));
    return element("li", {}, button,
      element("span", { className: "tokens", role: "img", ariaLabel: text.join("") }, ...tokens));
  });
}

// The token that the step has moved most as it was pushed, [row, token], or the first.
function mostChanged(group, results) {
  const moves = group.map(({ logps, after }, i) => (after ?? []).map((logp, t) =>
    Math.sign(results[i].tokens[t]) * (Math.exp(logp) - Math.exp(logps[t]))));
  const most = Math.max(...moves.flat()), i = moves.findIndex((row) => row.includes(most));
  return i < 0 ? [0, 0] : [i, moves[i].indexOf(most)];
}

// The numbers of one token, in a line.
function numbersOf(group, results, algorithm, i, t, isTrained) {
  const { ids, logps } = group[i], weight = results[i].tokens[t], G = group.length;
  const after = isTrained && group[i].after; // not by what the reader has changed since
  if (ids[t] === null) return ""; // of a shared run
  const under = { length: `(${G} × ${ids.length} tokens)`, limit: `(${G} × 56)`,
    tokens: `${divisorOf(algorithm, group, i)} tokens` }[algorithm.divisor];
  const push = weight ? `A / ${under} = ${signed(weight, 4)}` : "no push";
  const moved = [logps, after].filter(Boolean).map((list) => percent(list[t])).join(" → ");
  const others = after && weight * (after[t] - logps[t]) < 0 ? ", by the pushes on others" : "";
  return `“${letter(ids[t])}”: ${push}${moved && ` · probability ${moved}${others}`}`;
}
