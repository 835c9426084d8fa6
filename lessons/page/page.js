// The page itself: its strips and controls. build.py joins the files here, which share their names.

const { CODE, HELD_OUT, PATCHES, REASONS } = JSON.parse($("data").textContent);
for (const key in PATCHES) REASONS[$(key).textContent] = PATCHES[key].why;
const MOST_LANES = 3;
const weights = new Float32Array(bytesOf($("weights").textContent).buffer);
const world = { weights, heldOut: HELD_OUT, problem: "33+41-39-26+11", seed: 0 };
const lanes = []; // training runs, each with its elements in the page
let choice = PLAIN; // what the switches say
let moved = null; // the lane that is trained, or was the last
let hovered = null, pinned = null, magnified = [], token = [], guess = "";
let running = false, target = 0; // the step to which lanes are trained; 0 stops them
let changing = Promise.resolve(); // until the first batch is written
let waiting = 0; // of an animation frame, so that strips are drawn once for many events

const write = (id, text) => { $(id).textContent = text; };

// What a choice is called: by the names of the switches and of the mistakes in the page
function nameOf({ name, flipped, mistake }) {
  const parts = flipped.map((key) =>
    `${isOn({ ...PLAIN, name }, key) ? "without" : "with"} ${$(key).textContent}`);
  return [name, ...parts, ...(mistake ? [`broken: ${$(mistake).textContent}`] : [])].join(", ");
}

// ---------------------------------------------------------------------- what is magnified
const askedOf = (lane) => (nameOf(choice) === lane.name ? lane.algorithm : algorithmOf(choice));

// The block that the reader points at, or the newest mixed group of the lane that moved last; while
// it trains, of a step that is done
function selected() {
  const at = hovered ?? pinned;
  if (lanes.includes(at?.lane) && at.lane.columns[at.column]?.groups[at.group]) return at;
  const lane = lanes.includes(moved) ? moved : lanes.at(-1);
  const mixed = ({ groups, done }) => (done || !running) && groups.some((group) => isMixed(group));
  const column = Math.max(lane.columns.findLastIndex(mixed), 0);
  return within(lane, column, lopsided(lane.columns[column].groups));
}

function showMagnifier(at) {
  const { lane, column } = at, group = lane.columns[column].groups[at.group], list = $("group");
  if (!group) return;
  const asked = askedOf(lane), verdicts = JSON.stringify([asked, rewardsOf(group)]);
  const { after, advantages } = group[0], now = [after, advantages, verdicts, group, lanes.length];
  if (now.every((one, i) => one === magnified[i])) return;
  magnified = now;
  const results = lane.pushesOn(group, asked);
  const isTrained = asked === lane.algorithm && group.every((row) => row.reward === row.verdict);
  // of a token in a completion of average length, the same for what it would get
  const full = FULL / mean(group.map((_, i) => divisorOf(lane.algorithm, group, i)));
  const rowWith = (node) => [...list.children].findIndex((row) => row.contains(node));
  const focused = rowWith(document.activeElement);
  const flip = (i) => {
    group[i].reward = 1 - group[i].reward;
    pinned = at;
    show();
  };
  const point = (...at) => {
    token = at;
    const [i, t] = results[at[0]]?.tokens[at[1]] === undefined ? mostChanged(group, results) : at;
    list.querySelector(".pointed")?.classList.remove("pointed");
    list.children[i].querySelectorAll("i")[t].classList.add("pointed");
    write("numbers", numbersOf(group, results, asked, i, t, isTrained));
  };
  write("title", title(group, column) + (lanes.length > 1 ? ` · ${lane.name}` : ""));
  write("explained", explain(group, results, asked));
  list.replaceChildren(...rowsOf(group, results, full, flip, point));
  list.children[focused]?.querySelector("button").focus();
  list.onkeydown = (event) => { // the arrow keys go from token to token
    const i = rowWith(event.target), move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const last = group[i].ids.length - 1, from = token[0] === i ? token[1] + move : 0;
    point(i, Math.max(0, Math.min(from, last)));
  };
  point(...token);
}

async function look(at, keep) { // at the block at the pointer, or the newest one
  token = [];
  if (keep) pinned = at;
  hovered = keep ? null : at;
  show();
  const group = at?.lane.columns[at.column]?.groups[at.group];
  if (running || !group || group[0].after || at.column + 1 !== at.lane.trainer.steps) return;
  await at.lane.follow(group); // what the newest step did to its tokens
  show();
}

// ---------------------------------------------------------------------- strips
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
  Home: [-Infinity, 0], End: [Infinity, 0], Escape: null };

function openLane(chosen) {
  const lane = new Lane(world, chosen), root = $("lane").content.firstElementChild.cloneNode(true);
  const nodes = [root, ...root.querySelectorAll("[data-part]")];
  lane.parts = Object.fromEntries(nodes.map((node) => [node.dataset.part, node]));
  const { remove, strip } = lane.parts;
  lane.name = lane.parts.name.textContent = nameOf(chosen);
  strip.ariaLabel = `${lane.name}: arrow keys go through steps and groups`;
  strip.classList.toggle("replaces", Boolean(lane.algorithm.dynamic_sampling));
  Object.assign(remove, { ariaLabel: `Remove ${lane.name}`, hidden: !lanes.length });
  remove.onclick = () => {
    root.remove();
    lanes.splice(lanes.indexOf(lane), 1);
    show();
    $("train").focus();
  };
  strip.onpointerdown = strip.onpointermove = (event) => {
    if (event.buttons) strip.setPointerCapture(event.pointerId);
    look(blockAt(lane, event), event.buttons > 0);
  };
  strip.onpointerleave = () => look(null, false);
  strip.onkeydown = (event) => {
    const move = MOVES[event.key], at = selected();
    if (move === undefined) return;
    event.preventDefault();
    const { column, group } = at.lane === lane ? at : { column: 0, group: 0 };
    look(move && within(lane, column + move[0], group + move[1]), true);
  };
  $("strips").append(root);
  lanes.push(lane);
  return lane;
}

function show() {
  waiting ||= requestAnimationFrame(() => {
    waiting = 0;
    showControls();
    if (!lanes.length || !lanes.every(({ columns }) => columns.length)) return;
    const at = selected();
    for (const lane of lanes) showLane(lane, at.lane === lane ? at : null);
    showMagnifier(at);
  });
}

function showLane(lane, at) {
  const { accuracy, algorithm, columns, parts, seeds, steps } = lane;
  drawStrip(lane, at, at ? askedOf(lane) : algorithm);
  const group = at && columns[at.column].groups[at.group];
  Object.assign(parts.strip, { ariaValueMax: columns.length,
    ariaValueNow: at ? at.column + 1 : columns.length,
    ariaValueText: group ? `${title(group, at.column)}, group ${at.group + 1}` : "" });
  const late = columns.slice(-10), groups = late.flatMap((column) => column.groups);
  const thrown = sum(late.map((column) => column.thrown));
  const lately = algorithm.dynamic_sampling
    ? `${groups.length + thrown} groups written, ${thrown} thrown away (small squares)`
    : `${groups.filter((group) => !isMixed(group)).length} of ${groups.length} groups silent`;
  const [first, last] = [accuracy[0], accuracy.at(-1)].map((one) => one && percentOf(one[1]));
  parts.result.textContent = !accuracy.length ? "" : `${first} → ${last} % right` +
    (seeds.length ? `, ${seeds.length + 1} seeds` : "") + (steps < 10 ? "" : `; lately ${lately}`);
}

function showControls() {
  const started = lanes.some(({ steps }) => steps), isFull = lanes.length === MOST_LANES;
  write("train", !running ? "Train" : target ? "Stop" : "Stopping …");
  $("one").ariaDisabled = $("use").disabled = running;
  $("question").hidden = started || running;
  $("again").hidden = !started || lanes.some(({ name }) => name === nameOf(choice));
  write("again", isFull ? "Remove a strip, to train with it" : `Train with it: ${nameOf(choice)}`);
  $("again").disabled = running || isFull;
  for (const key in SWITCHES) {
    const on = isOn(choice, key);
    Object.assign($(key), { ariaChecked: Boolean(on), ariaDisabled: on === undefined });
  }
  $("preset").value = choice.name;
  $("broken").value = choice.mistake;
  const done = lanes.filter(({ steps }) => steps >= STEPS);
  $("seeds").hidden = running || done.length < 2 || done.every(({ seeds }) => seeds.length === 2);
  write("compared", started && lanes.length > 1 ? compared(done) : "");
  $("next").hidden = running || lanes.length > 1 || !done[0] || done[0].algorithm.dynamic_sampling;
}

function compared(done) {
  if (done.length < 2 || done.some(({ seeds }) => seeds.length < 2))
    return "One seed each: where the bands overlap, the difference may be luck.";
  const late = done.map(lateAccuracy), texts = late.map((one, i) => {
    const [centre, low, high] = one.map((share) => (100 * share).toFixed(1));
    return `${done[i].name} ${centre} % (${low} to ${high})`;
  });
  const isApart = Math.max(...late.map((one) => one[1])) > Math.min(...late.map((one) => one[2]));
  return `Late accuracy, three seeds: ${texts.join(", ")}. ` + (isApart
    ? "The bands do not overlap." : "The bands overlap: three seeds cannot tell them apart.");
}

// ---------------------------------------------------------------------- training
async function train(work) { // unless something is being trained
  if (running) return;
  running = true;
  target = Infinity;
  write("alarm", "");
  if (document.activeElement !== $("one")) $("train").focus({ preventScroll: true });
  show();
  try {
    await changing;
    await work();
  } catch (error) {
    if (!(error instanceof Diverged)) throw error;
    write("alarm", `The training diverged: ${error.message}. This step is undone.`);
  } finally {
    running = false;
    show();
    save();
  }
}

async function trainLanes(isOneStep = false) { // the lanes that are behind, or all
  if (!await takeProblem()) return;
  pinned = hovered = null;
  token = [];
  if (lanes.every(({ isCopy }) => isCopy)) for (const lane of lanes) lane.clear();
  const moving = lanes.filter(({ isCopy }) => !isCopy), steps = moving.map((lane) => lane.steps);
  const least = Math.min(...steps), most = Math.max(...steps);
  const next = isOneStep ? least + 1 : (Math.floor(least / STEPS) + 1) * STEPS;
  target &&= !isOneStep && least < most ? most : next;
  for (const lane of moving)
    while (lane.steps < target && lanes.includes(lane)) {
      moved = lane;
      if (!lane.isDrawn) await lane.draw();
      show();
      await lane.step();
      say(lane);
      show();
    }
}

function say({ columns, steps, name }) {
  const [from, to] = [columns[0], columns.at(-1)].map(({ groups }) =>
    Math.round(mean(groups.flatMap(lengthsOf))));
  const isDone = steps >= STEPS, isRight = guess === (to > from ? "longer" : "shorter");
  const judged = !isDone ? "" : isRight ? ", rightly" : ", wrongly";
  const said = lanes.length < 2 ? guess && `You said ${guess}${judged}. ` : "";
  write("status", `${lanes.length > 1 ? `${name}: ` : ""}step ${steps}. ${said}` +
    `Completions: ${from} → ${to} tokens${isDone ? "; only right or wrong was rewarded" : ""}.`);
}

async function trainSeeds() { // two more of each lane, unseen but for their accuracy
  for (const lane of lanes.filter(({ steps }) => steps >= STEPS))
    for (const more of [1, 2]) {
      const other = lane.begun[more - 1] ??= new Lane(world, lane.choice, world.seed + more);
      while (target && other.steps < lane.steps) {
        await other.step();
        other.columns = [];
        write("status", `${lane.name}: seed ${more + 1}, step ${other.steps} of ${lane.steps}`);
      }
      if (other.steps >= lane.steps) lane.seeds[more - 1] = other;
    }
  write("status", "");
  $("compared").scrollIntoView({ block: "nearest" });
}

// The problem in the box, from the next step on. -> whether it is one
async function takeProblem() {
  const problem = $("problem").value.replace(/[\s?]/g, "").replace(/[−–]/g, "-");
  const { fault } = read(problem);
  write("refused", fault ? `Not a problem of this task: ${fault}.` : "");
  if (fault) return false;
  $("problem").value = typeset(problem);
  if (problem === world.problem) return true;
  world.problem = problem;
  for (const lane of lanes) if (lane.isDrawn) await lane.draw();
  show();
  return true;
}

// ---------------------------------------------------------------------- switches
function choose(next) {
  if (next === choice) return;
  showReasons(choice, next);
  choice = next;
  // nothing is trained yet: the lane changes
  if (!running && lanes.length === 1 && !lanes[0].steps) {
    lanes.pop().parts.root.remove();
    changing = openLane(choice).draw().then(show);
  }
  show();
}

function showReasons(before, after) { // of a change: why, and the lines of code that it changes
  const [old, now] = [before, after].map((one) => codeOf(one, CODE, PATCHES));
  const lines = [], told = new Set();
  const without = (some = [], others = []) => some.filter((line) => !others.includes(line));
  for (const part in { ...old, ...now }) {
    const minus = without(old[part], now[part]), plus = without(now[part], old[part]);
    const heading = SWITCHES[part] ? $(part).textContent : part;
    if (minus.length + plus.length) lines.push(["file", heading]);
    lines.push(...minus.map((line) => ["minus", line]), ...plus.map((line) => ["plus", line]));
    const [gone, come] = [minus, plus].map((some) =>
      Object.keys(REASONS).filter((tag) => some.join().includes(`[${tag}]`)));
    for (const tag of come.length ? come : gone) told.add(tag);
  }
  const isBroken = after.mistake && after.mistake !== before.mistake;
  $("why").replaceChildren(...(isBroken ? [$(after.mistake).textContent] : [...told]).map((tag) =>
    element("p", {}, element("b", {}, `${tag}. `), REASONS[tag])));
  $("code").hidden = !lines.length;
  $("code").replaceChildren(...lines.map(([className, line]) =>
    element("span", { className }, line)));
}

// ---------------------------------------------------------------------- the address
function save() {
  const runs = lanes.map((lane) => {
    const { choice: { name, flipped, mistake }, steps } = lane;
    return ["run", [name, mistake, flipped.join(" "), steps ? toText(lane) : ""].join()];
  });
  runs.unshift(["problem", world.problem], ["seed", world.seed]);
  $("link").href = `#${new URLSearchParams(runs)}`;
  history.replaceState(null, "", $("link").href);
}

async function load() {
  const workers = Math.min(4, navigator.hardwareConcurrency || 2);
  world.pool = await Pool.open(workers, $("engine").textContent);
  const given = new URLSearchParams(location.hash.slice(1));
  world.seed = Math.floor(Math.min(Math.max(0, Number(given.get("seed")) || 0), 1e6));
  if (read(given.get("problem") ?? "").fault === null) world.problem = given.get("problem");
  $("problem").value = typeset(world.problem);
  for (const run of given.getAll("run").slice(0, MOST_LANES)) {
    const [name, mistake, flips = "", text] = run.split(",");
    if (!Object.hasOwn(ALGORITHMS, name)) continue;
    choice = { ...PLAIN, name, mistake: Object.hasOwn(PATCHES, mistake) ? mistake : "" };
    for (const key of flips.split(" "))
      if (Object.hasOwn(SWITCHES, key)) choice = flipSwitch(choice, key);
    const lane = openLane(choice);
    try {
      if (text) fromText(lane, text);
      write("status", "A shared run, without its letters: Train writes them again.");
    } catch {
      lane.clear();
      write("alarm", "The link is damaged: Train runs it again.");
    }
  }
  if (!lanes.length) openLane(choice);
  for (const lane of lanes) if (!lane.columns.length) await lane.draw();
}

// ---------------------------------------------------------------------- at the start
$("preset").onchange = () => choose({ ...choice, name: $("preset").value, flipped: [] });
$("broken").onchange = () => choose({ ...choice, mistake: $("broken").value });
for (const id in SWITCHES) $(id).onclick = () => choose(flipSwitch(choice, id));
$("train").onclick = () => {
  if (!running) return train(trainLanes);
  target = 0;
  show();
};
$("one").onclick = () => train(() => trainLanes(true));
$("seeds").onclick = () => train(trainSeeds);
$("again").onclick = () => {
  const { root } = openLane(choice).parts;
  train(trainLanes);
  root.scrollIntoView({ block: "nearest" });
};
$("next").onclick = () => { choose({ ...PLAIN, name: "DAPO" }); $("again").click(); };
$("question").onclick = ({ target: { textContent, type } }) => {
  if (type !== "button") return;
  guess = textContent;
  train(trainLanes);
};
$("ask").onsubmit = (event) => { event.preventDefault(); takeProblem(); };
addEventListener("hashchange", () => location.reload());

// For the console and the tests.
globalThis.sigmaLadder = { world, lanes, base: world.weights, compared, selected };

await (changing = load());
show();
document.body.ariaBusy = "false";
