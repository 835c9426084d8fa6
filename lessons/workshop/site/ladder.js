// Two scripts side by side, from the data that lessons/workshop/site/ladder.py puts into the page: the lines of each script as HTML,
// from the end of its imports on; the changes between any two scripts in the form of Python's difflib; what is said of each tag; and the
// options of each script in TRL and verl.
"use strict";
const KEPT = 3; // equal lines that stay visible before and after a change
const { scripts, changes, about, tags, options } = JSON.parse(document.getElementById("data").textContent);
const [before, after] = document.querySelectorAll("#choose select");
const board = document.getElementById("ladder"), entry = document.getElementById("entry");

const indent = (line) => line.replace(/<[^>]*>/g, "").search(/\S|$/); // a line that is wrapped goes on below its start
const row = (line) => `<span class="line" style="--indent: ${indent(line) + 2}ch">${line || " "}</span>`;
const code = (lines) => `<pre>${lines.map(row).join("")}</pre>`;
const equal = (lines) => `<div class="block">${code(lines)}${code(lines)}</div>`;

function block([kind, a, b, c, d]) {
  const old = scripts[before.value].slice(a, b), lines = scripts[after.value].slice(c, d);
  if (kind !== "equal") return `<div class="block changed">${code(old)}${code(lines)}</div>`;
  if (lines.length <= 2 * KEPT + 2) return equal(lines);
  const folded = lines.slice(KEPT, -KEPT), summary = `<summary>${folded.length} equal lines</summary>`;
  return equal(lines.slice(0, KEPT)) + `<details>${summary}${equal(folded)}</details>` + equal(lines.slice(-KEPT));
}

function show() {
  const heads = [before, after].map(({ value }) => `<b><a href="algorithms/${value}.py.html">${value}.py</a></b>`);
  const summary = about[after.value].split("\n\n").filter((part) => !part.trim().startsWith("python "));
  const told = about[after.value].includes(`gainst ${before.value}.py`); // the docstring sums this pair up
  board.innerHTML = `<ul class="why"></ul>${told ? `<details open><summary>in the words of ${after.value}.py</summary><pre>${summary.join("\n\n")}</pre></details>` : ""}
    <details><summary>in TRL and verl</summary>${["TRL", "verl"].map(inLibrary).join("")}</details>
    <div class="block heads">${heads.join("")}</div>
    ${changes[`${before.value}-${after.value}`].map(block).join("")}`;
  const [gone, come] = ["first", "last"].map((side) => tagsOf(`.changed pre:${side}-child button`));
  const item = (sign, what) => (tag) => `<li><b title="${what}">${sign}</b> <button data-tag="${tag}">${tag}</button> ${tags[tag][0]}</li>`;
  const left = gone.filter((tag) => !come.includes(tag)), both = gone.filter((tag) => come.includes(tag));
  board.querySelector("ul").innerHTML = [...left.map(item("−", "removed")), ...come.filter((tag) => !gone.includes(tag)).map(item("+", "added")),
    ...both.map(item("±", "changed"))].join("");
  explain();
}

function inLibrary(library) { // the options in which the two scripts differ
  const [old, now] = [before, after].map(({ value }) => options[value][library]);
  const missing = [before, after].filter(({ value }) => !options[value][library]).map(({ value }) => value);
  if (missing.length) return `<p>${library} has no ${[...new Set(missing)].join(" and no ")}.</p>`;
  const named = (set, name) => name in set ? `<code>${name}=${JSON.stringify(set[name])}</code>` : "default";
  const differing = Object.keys({ ...old, ...now }).filter((name) => named(old, name) !== named(now, name));
  return `<p>${library}: ${differing.length ? "" : "the same options."}</p>` +
    `<ul>${differing.map((name) => `<li>${named(old, name)} → ${named(now, name)}</li>`).join("")}</ul>`;
}

const tagsOf = (selector) => [...new Set(Array.from(board.querySelectorAll(selector), (button) => button.dataset.tag))];

function explain(tag, line) { // what a tag means; the line that it stands on stays in sight, above the entry
  board.querySelector(".chosen")?.classList.remove("chosen");
  entry.hidden = !tag;
  const [why, where] = tags[tag] ?? [];
  entry.innerHTML = tag ? `<button aria-label="Close">×</button><p><b>[${tag}]</b> ${why}</p><p>${where}</p>` : "";
  if (!line) return;
  line.classList.add("chosen");
  for (let box = line; (box = box.closest("details:not([open])")); ) box.open = true;
  if (line.getBoundingClientRect().bottom > entry.getBoundingClientRect().top || line.getBoundingClientRect().top < 60)
    line.scrollIntoView({ block: "center" });
}

function read() {
  const [from, to] = location.hash.slice(1).split("-");
  before.value = from in scripts ? from : "grpo";
  after.value = to in scripts ? to : "dr_grpo";
  show();
}

for (const choice of [before, after])
  choice.addEventListener("change", () => {
    history.replaceState(null, "", `#${before.value}-${after.value}`);
    show();
  });
let reading = null; // where the list was left for a line of code
board.addEventListener("click", ({ target }) => {
  const button = target.closest("button") ?? target.closest(".line")?.querySelector("button"), tag = button?.dataset.tag;
  if (tag) reading = button.closest(".line") ? null : scrollY;
  if (tag) explain(tag, button.closest(".line") ?? board.querySelector(`.line:has([data-tag="${tag}"])`));
});
function close() {
  const button = board.querySelector(".chosen button");
  explain();
  button?.focus({ preventScroll: true });
  if (reading !== null) scrollTo({ top: reading });
  reading = null;
}
entry.addEventListener("click", ({ target }) => target.closest("button") && close());
addEventListener("keydown", ({ key }) => key === "Escape" && close());
addEventListener("hashchange", read);
read();
