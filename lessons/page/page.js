// The page itself: its strips, and what its controls do.
// build.py joins the modules into two scripts, what a worker runs and the rest, so all of their
// top-level names are different.

import { ALGORITHMS, isMixed, mean, pushes, sum } from "./algorithms.js";
import { answer, drawProblem, read, stream, value } from "./arithmetic.js";
import { Lane, MISTAKES, PLAIN, SWITCHES, algorithmOf, codeOf, difference, flipSwitch, fromBytes,
  fromText, isOn, lateAccuracy, lengthsIn, lopsided, nameOf, rewardsIn, tagOf, toBytes,
  toText } from "./lanes.js";
import { $, element, explain, fullColour, mostChanged, numbersOf, rowsOf,
  title } from "./magnifier.js";
import { readWeights } from "./model.js";
import { STEPS, blockAt, drawStrip, layout } from "./strip.js";
import { Diverged, Pool } from "./training.js";

const json = (id) => JSON.parse($(id).textContent);
const CODE = json("code-lines"), PATCHES = json("patches"), REASONS = json("reasons");
const weights = readWeights($("weights").textContent.trim());
const world = { pool: new Pool(), weights, heldOut: json("held-out"), problem: "33+41-39-26+11",
  seed: 0 };
const lanes = [], frames = []; // training runs, and the elements of each
const MOST_LANES = 3;
let choice = PLAIN, before = PLAIN; // what the switches say, and said before the last flip
let hovered = null, pinned = null, token = null, guess = "";
let running = false, target = 0, training = Promise.resolve(), changing = training;

// ---------------------------------------------------------------------- what is magnified

const chosenAlgorithm = (lane) =>
  (nameOf(choice) === lane.name ? lane.algorithm : algorithmOf(choice));

function newest() { // of the lane that has moved last: its newest step with a mixed group
  const lane = lanes.find((one) => one.isMoving) ?? lanes.at(-1);
  const mixed = ({ groups }) => groups.some((group) => isMixed(rewardsIn(group)));
  const column = Math.max(lane.columns.findLastIndex(mixed), 0);
  return { lane, column, group: Math.max(lopsided(lane.columns[column].groups), 0) };
}

function selected() {
  const at = hovered ?? pinned, there = at && lanes.includes(at.lane);
  return there && at.lane.columns[at.column]?.groups[at.group] ? at : newest();
}

function showMagnifier(at) {
  const { lane, column } = at, group = lane.columns[column].groups[at.group];
  if (!group) return;
  const asked = chosenAlgorithm(lane), results = lane.pushesOn(group, asked);
  const full = fullColour(lane.algorithm, lengthsIn(group)); // the same for what it would get
  const focused = document.activeElement?.dataset?.row;
  const flip = (i) => { group[i].reward = 1 - group[i].reward; pinned = at; show(); };
  const point = (i, t) => { token = [i, t]; showNumbers(); };
  const showNumbers = () => {
    for (const one of $("group").querySelectorAll(".pointed")) one.classList.remove("pointed");
    const [i, t] = token && results[token[0]]?.tokens[token[1]] ? token : mostChanged(group);
    $("group").children[i].querySelectorAll("i")[t].classList.add("pointed");
    $("numbers").textContent = numbersOf(group, results, asked, i, t);
  };
  $("title").textContent = title(group, column) + (lanes.length > 1 ? ` · ${lane.name}` : "");
  $("explained").textContent = explain(group, results, asked);
  $("group").setAttribute("aria-label", $("title").textContent);
  $("group").replaceChildren(...rowsOf(group, results, full, flip, point));
  if (focused) $("group").querySelector(`[data-row="${focused}"]`)?.focus();
  $("group").onkeydown = (event) => { // the arrow keys go from token to token
    const i = Number(event.target.dataset?.row), move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const last = results[i].tokens.length - 1, from = token?.[0] === i ? token[1] + move : 0;
    point(i, Math.max(0, Math.min(from, last)));
  };
  showNumbers();
}

// Score a group of the newest step again, so that its tokens show what the step did.
async function follow({ lane, column, group }) {
  const { groups, done } = lane.columns[column], rows = groups[group];
  if (running || lane.isCopy || !done || column + 1 < lane.columns.length || rows[0].after) return;
  await lane.follow(rows);
  show();
}

// ---------------------------------------------------------------------- strips

function openLane(chosen) {
  const lane = new Lane(world, chosen), i = lanes.push(lane) - 1;
  const canvas = element("canvas", { tabindex: 0, role: "slider", "aria-valuemin": 1 });
  const remove = element("button", { type: "button", class: "quiet", onclick: () => closeLane(lane),
    "aria-label": `Remove ${lane.name}` }, "×");
  const root = element("figure", {}, element("figcaption", {}, element("b", {}, lane.name),
    element("span", { class: "result" }), i ? remove : ""), element("div", {}, canvas));
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const place = layout(lane, canvas.parentElement.clientWidth);
    return { lane, ...blockAt(lane, place, event.clientX - box.x, event.clientY - box.y) };
  };
  const drag = (event) => { canvas.setPointerCapture(event.pointerId); look(at(event), true); };
  canvas.addEventListener("pointerdown", drag);
  canvas.addEventListener("pointermove", (event) => look(at(event), event.buttons > 0));
  canvas.addEventListener("pointerleave", () => { hovered = null; show(); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      Home: [-Infinity, 0], End: [Infinity, 0], Escape: [0, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const from = selected().lane === lane ? selected() : { lane, column: 0, group: 0 };
    const column = Math.max(0, Math.min(from.column + move[0], lane.columns.length - 1));
    const last = lane.columns[column].groups.length - 1;
    const to = { lane, column, group: Math.max(0, Math.min(from.group + move[1], last)) };
    look(event.key === "Escape" ? null : to, true);
  });
  frames.push({ root, canvas, base: element("canvas"), result: root.querySelector(".result") });
  $("strips").append(root);
  return lane;
}

function look(at, keep) { // the block at the pointer, or the newest one
  token = null;
  if (keep) pinned = at;
  hovered = keep ? null : at;
  show();
  if (at) follow(at);
}

async function closeLane(lane) {
  await stop();
  const i = lanes.indexOf(lane);
  if (i < 1) return;
  lanes.splice(i, 1);
  frames.splice(i, 1)[0].root.remove();
  show();
  $("train").focus();
}

let waiting = 0; // of an animation frame, so that strips are drawn once for many events

function show() {
  waiting ||= requestAnimationFrame(() => {
    waiting = 0;
    if (!lanes.length || !lanes.every(({ columns }) => columns.length)) return;
    const at = selected();
    lanes.forEach((lane, i) => showLane(lane, frames[i], at));
    showMagnifier(at);
    showControls();
  });
}

function showLane(lane, { canvas, base, result }, at) {
  const here = at.lane === lane, { accuracy, steps, seeds } = lane;
  drawStrip(canvas, base, lane, here ? at : null, here ? chosenAlgorithm(lane) : lane.algorithm);
  canvas.setAttribute("aria-label", `${lane.name}: arrow keys go through steps and groups`);
  canvas.setAttribute("aria-valuemax", lane.columns.length);
  canvas.setAttribute("aria-valuenow", here ? at.column + 1 : lane.columns.length);
  const group = here && lane.columns[at.column].groups[at.group];
  const place = group ? `${title(group, at.column)}, group ${at.group + 1}` : "";
  canvas.setAttribute("aria-valuetext", place);
  const percentOf = (one) => one && Math.round(100 * one[1]);
  const [first, last] = [accuracy[0], accuracy.at(-1)].map(percentOf);
  const late = lane.columns.slice(-10), groups = late.flatMap((column) => column.groups);
  const silent = groups.filter((rows) => !isMixed(rewardsIn(rows)));
  const lately = lane.algorithm.dynamic_sampling
    ? `${sum(late.map(({ thrown }) => thrown))} silent groups replaced`
    : `${silent.length} of ${groups.length} groups silent`;
  result.textContent = last === undefined ? "" : `${first} → ${last} % right` +
    (seeds.length ? `, ${seeds.length + 1} seeds` : "") + (steps < 10 ? "" : `; lately ${lately}`);
}

function showControls() {
  const started = lanes.some(({ steps }) => steps),
    asked = lanes.some(({ name }) => name === nameOf(choice));
  $("train").textContent = running ? (target ? "Stop" : "Stopping …") : "Train";
  $("one").setAttribute("aria-disabled", running);
  $("question").hidden = started;
  $("again").hidden = !started || asked;
  $("again").textContent = lanes.length < MOST_LANES ? `Train with it: ${nameOf(choice)}`
    : "Remove a strip, to train with it";
  $("again").setAttribute("aria-disabled", running || lanes.length === MOST_LANES);
  for (const key in SWITCHES) {
    const on = isOn(choice, key), button = $(`switch-${key}`);
    button.setAttribute("aria-checked", Boolean(on));
    button.setAttribute("aria-disabled", on === undefined);
  }
  $("preset").value = choice.name;
  $("broken").value = choice.mistake;
  const done = lanes.filter(({ steps }) => steps >= STEPS);
  $("seeds").hidden = running || done.length < 2 || done.every(({ seeds }) => seeds.length === 2);
  $("compared").textContent = done.length > 1 ? compared(done) : "";
}

function compared(done) {
  if (done.some(({ seeds }) => seeds.length < 2))
    return "One seed each: where the bands overlap, the difference may be luck.";
  const percents = (list) => list.map((x) => Math.round(100 * x));
  const all = done.map((lane) => ({ name: lane.name, late: lateAccuracy(lane) }));
  const texts = all.map(({ name, late }) => {
    const [centre, low, high] = percents(late);
    return `${name} ${centre} % (${low} to ${high})`;
  });
  const low = Math.max(...all.map(({ late }) => late[1])),
    high = Math.min(...all.map(({ late }) => late[2]));
  return `Late accuracy, three seeds: ${texts.join(", ")}. ` + (low > high
    ? "The bands do not overlap." : "The bands overlap: three seeds cannot tell them apart.");
}

// ---------------------------------------------------------------------- training

function train(one) { // one step of the lanes that are behind, or all steps
  if (!running) training = loop(one);
  return training;
}

function findTarget(one) {
  const steps = lanes.filter((lane) => !lane.isCopy).map((lane) => lane.steps);
  const least = Math.min(...steps), most = Math.max(...steps);
  return one ? least + 1 : least < most ? most : (Math.floor(least / STEPS) + 1) * STEPS;
}

async function loop(one) {
  running = true;
  target = Infinity;
  $("alarm").textContent = "";
  showControls();
  try {
    await changing;
    if (!await takeProblem()) return;
    pinned = hovered = token = null;
    if (lanes.every(({ isCopy }) => isCopy)) lanes.forEach((lane, i) => {
      lane.clear();
      frames[i].base.key = ""; // to be painted anew
    });
    target &&= findTarget(one);
    for (const lane of lanes.filter(({ isCopy }) => !isCopy)) await trainLane(lane);
  } catch (error) {
    if (!(error instanceof Diverged)) throw error;
    $("alarm").textContent = `The training diverged: ${error.message}. This step is undone.`;
  } finally {
    for (const lane of lanes) lane.isMoving = false;
    running = false;
    show();
    save();
  }
}

async function trainLane(lane) { // up to the target
  lane.isMoving = true;
  while (lane.steps < target) {
    if (lane.columns.at(-1)?.done !== false) await lane.draw();
    show();
    await lane.step();
    say(lane);
    show();
    if (!lane.collapsed) continue;
    target = 0;
    $("alarm").textContent =
      `${lane.name} has collapsed: it solves less than half of what the base ` +
      "model solves.";
  }
  lane.isMoving = false;
}

const lengthOf = ({ groups }) => mean(groups.flatMap(lengthsIn));

function say({ columns, steps, name }) {
  const [from, to] = [columns[0], columns.at(-1)].map((column) => Math.round(lengthOf(column)));
  const more = to > from ? "longer" : "shorter";
  const guessed = guess
    ? `You said ${guess}${steps < STEPS ? "" : guess === more ? ", rightly" : ""}. ` : "";
  $("status").textContent = `${lanes.length > 1 ? `${name}: ` : ""}step ${steps}. ${guessed}` +
    `Completions: ${from} → ${to} tokens` +
    (steps < STEPS ? "." : "; only right or wrong was rewarded.");
}

function stop() {
  target = 0;
  if (running) showControls();
  return training;
}

async function trainSeeds() { // two more of each lane, unseen but for their accuracy
  running = true;
  target = STEPS;
  const done = lanes.filter(({ steps }) => steps >= STEPS);
  try {
    for (const lane of done)
      for (const more of [1, 2]) {
        const other = lane.seeds[more - 1] ?? new Lane(world, lane.choice, world.seed + more);
        while (target && other.steps < lane.steps) {
          await other.step();
          other.columns = [];
          $("status").textContent = `${lane.name}, seed ${more + 1} of 3: step ${other.steps}`;
          showControls();
        }
        if (other.steps >= lane.steps) lane.seeds[more - 1] = other;
      }
  } finally {
    running = false;
    $("status").textContent = "";
    show();
  }
}

// The problem in the box, from the next step on. -> whether it is one
async function takeProblem() {
  const problem = $("problem").value.replace(/[\s?]/g, "").replace(/[−–]/g, "-"),
    { fault } = read(problem);
  $("refused").textContent = fault ? `Not a problem of this task: ${fault}.` : "";
  if (fault) return false;
  $("problem").value = problem.replaceAll("-", "−");
  if (problem === world.problem) return true;
  world.problem = problem;
  for (const lane of lanes) if (lane.columns.at(-1)?.done === false) await lane.draw();
  show();
  return true;
}

// ---------------------------------------------------------------------- switches

function choose(next) {
  before = choice;
  choice = next;
  showReasons();
  // nothing is trained yet: the lane changes
  if (!running && lanes.length === 1 && !lanes[0].steps) {
    frames.pop().root.remove();
    lanes.pop();
    changing = openLane(choice).draw().then(show);
  }
  showControls(); // at once, also where a batch is still being written
  show();
}

function showReasons() { // of the last flip: why, and the lines of code that it changes
  const keys = Object.keys(SWITCHES).filter((key) => isOn(choice, key) !== isOn(before, key) &&
    isOn(choice, key) !== undefined);
  const own = Object.keys(REASONS).filter((tag) => tag.startsWith(`${choice.name}: `));
  const switched = keys.map((key) => tagOf(choice, key)); // no switch stands for a side rung's idea
  const told = choice.name === before.name || switched.some((tag) => own.includes(tag));
  const tags = told && keys.length ? switched : [...own, ...switched];
  const { mistake } = choice, broken = mistake && mistake !== before.mistake;
  const reasons = broken ? [[MISTAKES[mistake], PATCHES[mistake].why]]
    : [...new Set(tags)].map((tag) => [tag, REASONS[tag]]);
  $("why").replaceChildren(...reasons.map(([tag, why]) =>
    element("p", {}, element("b", {}, `${tag}. `), why)));
  const patches = Object.fromEntries([before, choice].map((one) => one.mistake).filter(Boolean)
    .map((name) => [name, PATCHES[name]]));
  const [a, b] = [before, choice].map((one) => codeOf(one, CODE, patches)), lines = [];
  for (const part of Object.keys({ ...a, ...b })) {
    const changed = difference(a[part] ?? [], b[part] ?? []).filter(([mark]) => mark !== " ");
    if (changed.length) lines.push(["#", part], ...changed);
  }
  $("code").hidden = !lines.length;
  $("code").replaceChildren(...lines.map(([mark, line]) =>
    element("span", { class: { "+": "plus", "-": "minus", "#": "file" }[mark] },
      mark === "#" ? line : `${mark} ${line}`)));
}

// ---------------------------------------------------------------------- the address

async function save() {
  const entries = [["problem", world.problem]];
  if (world.seed) entries.push(["seed", world.seed]);
  for (const { choice: { name, flipped, mistake }, steps } of lanes)
    entries.push(["run", [name, flipped.join(" "), mistake, steps].join(",")]);
  for (const lane of lanes) entries.push(["data", lane.steps ? await toText(toBytes(lane)) : ""]);
  $("link").href = `#${new URLSearchParams(entries)}`;
  history.replaceState(null, "", $("link").href);
}

async function load() {
  const given = new URLSearchParams(location.hash.slice(1)), data = given.getAll("data");
  world.seed = Math.floor(Math.min(Math.max(0, Number(given.get("seed")) || 0), 1e6));
  if (read(given.get("problem") ?? "").fault === null) world.problem = given.get("problem");
  $("problem").value = world.problem.replaceAll("-", "−");
  for (const [i, text] of given.getAll("run").slice(0, MOST_LANES).entries()) {
    const [name, flips = "", mistake = ""] = text.split(",");
    if (!Object.hasOwn(ALGORITHMS, name)) continue;
    choice = { name, flipped: [], mistake: Object.hasOwn(MISTAKES, mistake) ? mistake : "" };
    for (const key of flips.split(" "))
      if (Object.hasOwn(SWITCHES, key) && isOn(choice, key) !== undefined)
        choice = flipSwitch(choice, key);
    await copyInto(openLane(choice), data[i]);
    $("status").textContent = "A shared run, without its letters: Train writes them again.";
  }
  before = choice;
  if (!lanes.length) openLane(choice);
  for (const lane of lanes) if (!lane.columns.length) await lane.draw();
}

async function copyInto(lane, text) {
  try {
    if (text) fromBytes(lane, await fromText(text));
  } catch {
    lane.clear();
    $("alarm").textContent = "The link is damaged: Train runs it again.";
  }
}

// ---------------------------------------------------------------------- at the start

for (const [key, { label }] of Object.entries(SWITCHES))
  $("switches").append(element("button", { type: "button", role: "switch", id: `switch-${key}`,
    onclick: () => isOn(choice, key) !== undefined && choose(flipSwitch(choice, key)) }, label));
$("preset").append(...Object.keys(ALGORITHMS).map((name) => element("option", {}, name)));
$("broken").append(...Object.entries(MISTAKES).map(([key, text]) => element("option",
  { value: key }, text)));
$("preset").addEventListener("change", () =>
  choose({ ...choice, name: $("preset").value, flipped: [] }));
$("broken").addEventListener("change", () => choose({ ...choice, mistake: $("broken").value }));
$("train").addEventListener("click", () => (running ? stop() : train(false)));
$("one").addEventListener("click", () => train(true));
$("again").addEventListener("click", () => {
  if (running || lanes.length === MOST_LANES) return;
  openLane(choice);
  train(false);
  $("train").focus();
});
$("seeds").addEventListener("click", () => {
  if (!running) training = trainSeeds();
  $("train").focus();
});
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) takeProblem();
});
for (const button of $("question").querySelectorAll("button"))
  button.addEventListener("click", () => {
    guess = button.textContent;
    train(false);
    $("train").focus();
  });
addEventListener("hashchange", () => location.reload());
addEventListener("resize", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

// For the console and the tests.
globalThis.sigmaLadder = { ALGORITHMS, CODE, world, lanes, base: world.weights, answer,
  compared, drawProblem, read, stream, value, selected,
  pushes: (name, ...rest) => pushes(ALGORITHMS[name], ...rest) };

changing = Pool.open(Math.min(4, navigator.hardwareConcurrency || 2), $("engine").textContent)
  .then((pool) => { world.pool = pool; }).then(load);
await changing;
show();
document.body.setAttribute("aria-busy", "false");
