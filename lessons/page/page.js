// The page itself: its contents, and what its controls do.
// build.py joins the modules into two scripts, what a worker runs and the rest, so all of their top-level names are different.

import { ALGORITHMS, coefficients, pushes, sum } from "./algorithms.js";
import { answer, drawProblem, read, stream, value } from "./arithmetic.js";
import { setDial } from "./dial.js";
import { card, changed, count, explain, fullColour, pushed, summaryOfChange } from "./group.js";
import { CHOICES, Lane, codeOf, difference, mistakeOf, ownChoice } from "./lanes.js";
import { readWeights } from "./model.js";
import { $, element, plot } from "./pictures.js";
import { Diverged, Pool } from "./training.js";

const json = (id) => JSON.parse($(id).textContent);
const CODE = json("code-lines"), PATCHES = json("patches"), FIRST = ["GRPO", "Dr. GRPO", "DAPO"], NAMES = [...FIRST, ...Object.keys(ALGORITHMS).filter((name) => !FIRST.includes(name))];
const STEPS = 60; // of a training
const world = { pool: new Pool(), weights: readWeights($("weights").textContent.trim()), heldOut: json("held-out"), problem: "29+46-36", draw: 0, seed: 0 };
const lanes = [], panels = []; // one or two; the elements of each
const chosen = { view: "push", ratio: 1, allCards: false };
let training = Promise.resolve(), target = 0, running = false, writing = 0, looking, looked = 0;
const position = () => Math.min(...lanes.map(({ at }) => at));
const newest = () => Math.max(...lanes.map(({ steps }) => steps));
const ready = () => lanes.length && lanes.every(({ group }) => group.length); // all groups are written
const letter = (i) => "AB"[i];

// ---------------------------------------------------------------------- writing a group

const typed = () => $("problem").value.replace(/[\s?]/g, "").replace(/[−–]/g, "-");

function ask(problem, draw = 0) { // -> a promise of the group, or none where this is no problem
  const { fault } = read(problem);
  $("refused").textContent = fault ? `Not a problem of this task: ${fault}.` : "";
  if (fault) return null;
  Object.assign(world, { problem, draw });
  $("problem").value = problem.replaceAll("-", "−");
  chosen.view = "push";
  return write();
}

async function write() { // all lanes write the shown problem's group; a newer request wins
  const run = ++writing;
  $("lanes").setAttribute("aria-busy", "true");
  await Promise.all(lanes.map((lane) => lane.answer()));
  if (run !== writing) return;
  $("lanes").setAttribute("aria-busy", "false");
  show();
}

// ---------------------------------------------------------------------- lanes

function openLane(i, name, settings = {}) {
  lanes[i] = new Lane(world, name, settings);
  panels[i] ??= panel(i);
  const { root, select, settings: box, summary } = panels[i], changes = Object.entries(settings).map(([key, choice]) => `${CHOICES[key][0]} ${choice}`);
  summary.textContent = `Settings${changes.length ? `: ${changes.join(", ")}` : ""}`;
  if (select.dataset.name !== name) { // else its elements stay, and the focus with them
    select.value = select.dataset.name = name;
    box.replaceChildren(...Object.keys(CHOICES).filter((key) => ownChoice(name, key)).map((key) => {
      const [label, choices] = CHOICES[key], own = ownChoice(name, key);
      return element("label", {}, `${label} `, element("select", { autocomplete: "off", onchange: ({ target }) => change(i, key, target.value) },
        ...Object.keys(choices).map((choice) => element("option", { value: choice, selected: choice === (settings[key] ?? own) }, choice + (choice === own ? " (script)" : "")))));
    }));
  }
  if (!root.isConnected) $("lanes").append(root);
}

function panel(i) {
  const select = element("select", { autocomplete: "off", "aria-label": `Algorithm of lane ${letter(i)}`, onchange: () => restart(i, select.value) },
    ...NAMES.slice(0, 3).map((name) => element("option", {}, name)), element("optgroup", { label: "Six more" }, ...NAMES.slice(3).map((name) => element("option", {}, name))));
  const summary = element("summary"), settings = element("div", { class: "settings" }), title = element("p", { class: "count" }), list = element("ol", { class: "completions" }), told = element("div");
  const remove = i ? element("button", { type: "button", onclick: closeLane }, "Remove this lane") : "";
  const root = element("section", { class: "lane", "aria-label": `Lane ${letter(i)}` },
    element("div", { class: "head" }, element("span", { class: `key ${letter(i)}` }, letter(i)), select, element("details", {}, summary, settings), remove), title, list, told);
  return { root, select, summary, settings, title, list, told };
}

async function restart(i, name, settings = {}) { // a changed lane starts at step 0; the other one waits for it
  await stop();
  openLane(i, name, settings);
  await write();
}

function change(i, key, choice) {
  const { name, settings: { [key]: before, ...settings } } = lanes[i];
  return restart(i, name, choice === ownChoice(name, key) ? settings : { ...settings, [key]: choice });
}

async function closeLane() {
  await stop();
  lanes.pop();
  panels.pop().root.remove();
  show();
  $("compare").focus();
}

// ---------------------------------------------------------------------- training

function train(until) {
  if (ready() && !running) training = loop(until);
}

async function loop(until) {
  running = true;
  target = until;
  $("alarm").textContent = "";
  $("status").textContent = until > position() + 1 ? "Training …" : "";
  showControls();
  try {
    while (position() < target) {
      const from = position(), stepped = lanes.filter(({ at }) => at === from);
      for (const lane of stepped) await lane.step();
      const worse = stepped.find((lane) => lane.collapsed);
      if (worse) {
        target = 0;
        $("alarm").textContent = `The policy ${lanes.length > 1 ? `of ${letter(lanes.indexOf(worse))} ` : ""}has collapsed: it solves less than half as many ` +
          "problems as the base model. Go back in time and train from there, or choose a smaller learning rate.";
      }
      show();
    }
  } catch (error) {
    if (!(error instanceof Diverged)) throw error;
    for (const lane of lanes) lane.look(position());
    $("alarm").textContent = `The training diverged: ${error.message}. This step is undone. Choose a smaller learning rate, or go back in time and train from there.`;
  }
  running = false;
  $("status").textContent = chosen.view === "done" ? `Step ${position()} is taken.` : lanes.map(resultOf).join(" ");
  show();
}

const resultOf = ({ accuracy, steps }, i) => `${lanes.length > 1 ? `${letter(i)}: ` : ""}${steps} steps` +
  (accuracy.length > 1 ? `, held-out accuracy ${accuracy[0][1].toFixed(2)} → ${accuracy.at(-1)[1].toFixed(2)}.` : ".");

function stop() {
  target = 0;
  showControls();
  return training;
}

async function lookAt(step) { // the shown problem, answered by the policies of an earlier step
  for (const lane of lanes) lane.look(step);
  chosen.view = "push";
  const looks = ++looked;
  await looking; // a slider asks faster than policies answer
  if (looks === looked) looking = write();
}

// ---------------------------------------------------------------------- showing

function show() {
  if (!ready()) return;
  lanes.forEach(showLane);
  showControls();
  showCurves();
  if (running) return;
  showCode();
  showCards();
  setDial(lanes[0].group.length, sum(lanes[0].group.map(({ reward }) => reward)));
  save();
}

function showLane({ name, group, last, at, steps, algorithm }, i) {
  const { title, list, told } = panels[i], problem = group[0].prompt.slice(0, -1), done = chosen.view === "done" && last && at === steps;
  const focused = document.activeElement?.dataset?.row, rows = done ? last : group;
  title.textContent = `${done ? `Step ${at}: ` : at ? `After step ${at}: ` : ""}${count(rows, rows[0].prompt.slice(0, -1))}`;
  list.setAttribute("aria-label", `${rows.length} completions of ${problem}`);
  list.replaceChildren(...(done ? changed(last) : pushed(group, algorithm, running ? null : (row) => flip(i, row))));
  told.replaceChildren(...(done ? [element("p", {}, summaryOfChange(last, algorithm, at))] : explain(name, algorithm, group)));
  if (focused && !done) list.querySelector(`[data-row="${focused}"]`)?.focus();
}

function flip(i, row) {
  lanes[i].group[row].reward = 1 - lanes[i].group[row].reward;
  show();
}

function showControls() {
  const stepped = lanes.some(({ last, at, steps }) => last && at === steps);
  $("train").textContent = running ? (target ? "Stop" : "Stopping …") : "Train";
  $("train").disabled = running && !target;
  $("one").disabled = $("time").disabled = running;
  $("compare").hidden = lanes.length > 1;
  Object.assign($("time"), { max: newest(), value: position() });
  $("time").setAttribute("aria-valuetext", `step ${position()}`);
  $("time-out").textContent = `${position()} of ${newest()}`;
  $("done").disabled = !stepped;
  $(chosen.view === "done" && stepped ? "done" : "push").checked = true;
  $("stage").classList.toggle("two", lanes.length > 1);
}

const CURVES = [ // [name, what it is, highest, the points of a lane]
  ["Held-out accuracy", "right answers to 128 problems it is never trained on", 1, ({ accuracy }) => accuracy],
  ["Length", "tokens per completion: working it out takes some 25", 32, (lane) => points(lane, "length")],
  ["Entropy", "how undecided the policy is about a token", 0.4, (lane) => points(lane, "entropy")],
  ["Silent share", "groups all right or all wrong, which push nothing", 1, (lane) => points(lane, "silent")],
];
const points = ({ metrics }, name) => metrics.map((row) => [row.step, row[name]]);

function showCurves() {
  const end = Math.max(STEPS, newest());
  $("curves").replaceChildren(...CURVES.map(([name, what, least, pointsOf]) => {
    const lines = lanes.map((lane, i) => ({ points: pointsOf(lane), colour: `var(--lane-${letter(i)})`, dash: i ? "6 3" : "none", dots: lane.accuracy === pointsOf(lane) }));
    const high = Math.max(least, ...lines.flatMap(({ points }) => points.map(([, y]) => y))), values = lines.map(({ points }) => points.at(-1)?.[1]);
    const seen = values.map((y, i) => (y === undefined ? "" : `${lanes.length > 1 ? `${letter(i)} ` : ""}${Number(y.toFixed(high > 2 ? 1 : 2))}`)).filter(Boolean).join(", ");
    return plot({ width: 300, height: 130, x: { low: 0, high: end, ticks: [0, end / 2, end] }, y: { low: 0, high, ticks: [0, Number(high.toPrecision(2))] }, lines, at: position() < newest() ? position() : null,
      caption: [element("b", {}, name), ` ${seen} `, element("span", { class: "note" }, what)], spoken: `${name} over steps: ${seen || "nothing yet"}` });
  }));
}

function showCode() { // one lane: its code, with its own lines lit; two: what differs
  const two = lanes.length > 1, mistakes = lanes.map(mistakeOf).filter(Boolean), lines = [];
  const [a, b] = lanes.map((lane) => codeOf(lane, CODE, Object.fromEntries(mistakes.map((name) => [name, PATCHES[name]]))));
  for (const part of Object.keys({ ...a, ...b })) {
    const all = two ? difference(a[part] ?? [], b[part] ?? []) : a[part].map((line) => [line.includes(`[${lanes[0].name}:`) ? "+" : " ", line]);
    const some = two ? all.filter(([mark]) => mark !== " ") : all;
    if (some.length) lines.push(["#", part], ...some);
  }
  $("lines").querySelector("summary").textContent = two ? "What B changes in the code and the settings of A" : `The code of ${lanes[0].name}, from the script; marked lines are its own`;
  $("code").replaceChildren(...(lines.length ? lines : [["#", "Nothing: change the algorithm or a setting of B."]]).map(([mark, line]) =>
    element("span", { class: { "+": "plus", "-": "minus", "#": "file" }[mark] ?? "" }, `${two && mark !== "#" ? mark : " "} ${line}`)));
}

function showCards() {
  $("ratio-out").textContent = $("ratio-too").textContent = chosen.ratio.toFixed(3);
  $("ratio").setAttribute("aria-valuetext", chosen.ratio.toFixed(3));
  $("all-cards").textContent = chosen.allCards ? "Show three" : "Show all nine";
  $("cards").replaceChildren(...NAMES.slice(0, chosen.allCards ? 9 : 3).map((name) => card(name, lanes[0].group, chosen.ratio)));
}

// ---------------------------------------------------------------------- the address of what is shown

function save() {
  const { problem, seed, draw } = world, entries = [["problem", problem], ["seed", seed], ["draw", draw], ["step", position()]];
  lanes.forEach(({ name, settings }, i) => entries.push([letter(i), name], ...Object.entries(settings).map(([key, choice]) => [`${letter(i)}.${key}`, choice])));
  $("link").href = `#${new URLSearchParams(entries.filter(([key, x]) => x || key === "problem"))}`;
  history.replaceState(null, "", $("link").href);
}

function load() { // -> the step that the address asks for
  const given = new URLSearchParams(location.hash.slice(1)), number = (key) => Math.max(0, Math.floor(Number(given.get(key)) || 0));
  Object.assign(world, { seed: number("seed"), draw: number("draw") });
  if (read(given.get("problem") ?? "").fault === null) world.problem = given.get("problem");
  for (const i of [0, 1].filter((i) => i === 0 || ALGORITHMS[given.get("B")])) {
    const name = ALGORITHMS[given.get(letter(i))] ? given.get(letter(i)) : "GRPO", choice = (key) => given.get(`${letter(i)}.${key}`);
    const keys = Object.keys(CHOICES).filter((key) => ownChoice(name, key) && choice(key) in CHOICES[key][1]);
    openLane(i, name, Object.fromEntries(keys.map((key) => [key, choice(key)])));
  }
  $("seed").value = world.seed;
  $("lines").open = lanes.length > 1;
  return Math.min(number("step"), 1000);
}

// ---------------------------------------------------------------------- at the start

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(typed(), typed() === world.problem ? world.draw + 1 : 0);
});
$("draw").addEventListener("click", () => ready() && ask(lanes[0].trainer.draw(Math.random)));
$("one").addEventListener("click", () => { chosen.view = "done"; train(position() + 1); });
$("train").addEventListener("click", () => {
  if (running) return stop();
  chosen.view = "push";
  train(position() < STEPS ? STEPS : position() + STEPS);
});
$("compare").addEventListener("click", async () => {
  await stop();
  openLane(1, lanes[0].name === "GRPO" ? "Dr. GRPO" : "GRPO");
  $("lines").open = true;
  await write();
  panels[1].select.focus();
});
$("seed").addEventListener("change", async () => {
  await stop();
  world.seed = Math.max(0, Math.floor(Number($("seed").value) || 0));
  lanes.forEach(({ name, settings }, i) => openLane(i, name, settings));
  await write();
});
for (const view of ["push", "done"]) $(view).addEventListener("change", () => { chosen.view = view; show(); });
$("time").addEventListener("input", () => lookAt(Number($("time").value)));
$("ratio").addEventListener("input", (event) => { chosen.ratio = Math.exp(event.target.value / 100); if (ready()) showCards(); });
$("all-cards").addEventListener("click", () => { chosen.allCards = !chosen.allCards; showCards(); });
addEventListener("hashchange", () => location.reload());

// For the console and the tests.
globalThis.sigmaLadder = { ALGORITHMS, CODE, world, lanes, base: world.weights, answer, difference, drawProblem, read, stream, value,
  ...Object.fromEntries(Object.entries({ pushes, coefficients, fullColour }).map(([name, f]) => [name, (algorithm, ...rest) => f(ALGORITHMS[algorithm], ...rest)])) };

world.pool = await Pool.open(Math.min(4, navigator.hardwareConcurrency || 2), $("engine").textContent);
const step = load();
await ask(world.problem, world.draw);
if (step) train(step);
