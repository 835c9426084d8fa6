// The film strip, as large as style.css says: columns are steps, blocks groups, bars completions.

const STEPS = 60; // of a training, and the fewest columns of a strip
const LONG = 32; // tokens of a bar that fills its column
const FULL = 2.65; // the advantage of full colour: GRPO's of one right completion of eight

// The nearest block to a column and a group that there is.
function within(lane, column, group) {
  const nearest = (n, list) => Math.max(0, Math.min(n, list.length - 1));
  const to = nearest(column, lane.columns);
  return { lane, column: to, group: nearest(group, lane.columns[to]?.groups ?? []) };
}

// The block at the pointer, or the nearest one.
function blockAt(lane, { clientX, clientY }) {
  const last = (nodes, side, place) =>
    [...nodes].findLastIndex((node) => node.getBoundingClientRect()[side] <= place);
  const { children } = lane.parts.columns;
  const { column } = within(lane, last(children, "left", clientX));
  const blocks = children[column]?.querySelectorAll(".block") ?? [];
  return within(lane, column, last(blocks, "top", clientY));
}

// What stands in a column: squares for what was thrown away, and blocks as an algorithm pushes them
function blocksOf(lane, { groups, thrown }, algorithm) {
  const squares = Array.from({ length: Math.min(thrown, 40) }, () => element("i"));
  const blocks = groups.map((group) => {
    const results = lane.pushesOn(group, algorithm);
    const isSilent = !isMixed(group) && algorithm.baseline !== "critic";
    const isLost = isSilent && algorithm.dynamic_sampling; // would be replaced
    const bars = group.map(({ ids }, i) =>
      element("i", shade(isLost ? 0 : results[i].advantage / FULL, ids.length / LONG)));
    return element("div", { className: isLost ? "block lost" : "block" }, ...bars);
  });
  return [element("div", { className: "thrown" }, ...squares), ...blocks];
}

// Draw a lane's strip. at: the block that is magnified, {column, group}, if it is in this strip;
// algorithm: by which that column is shaded. Only columns that have changed are drawn.
function drawStrip(lane, at, algorithm) {
  const { strip, columns } = lane.parts;
  const count = Math.max(STEPS, Math.ceil(lane.columns.length / 20) * 20);
  strip.style.setProperty("--count", count);
  lane.columns.forEach((column, c) => {
    const node = columns.children[c] ?? columns.appendChild(element("div"));
    const by = c === at?.column ? algorithm : lane.algorithm;
    const bars = column.groups.flat().map(({ ids, reward }) => 2 * ids.length + reward);
    const look = [JSON.stringify(by), column.done, bars].join();
    if (node.look !== look) node.replaceChildren(...blocksOf(lane, column, by));
    node.look = look;
  });
  while (columns.children.length > lane.columns.length) columns.lastChild.remove();
  columns.querySelector(".at")?.classList.remove("at");
  if (at) columns.children[at.column].querySelectorAll(".block")[at.group]?.classList.add("at");
  drawAccuracy(lane.parts, band(lane), count);
}

function drawAccuracy({ plot, band, line, axis }, points, count) {
  const path = (list) => list.map(([s, p], i) => `${i ? "L" : "M"}${s} ${1 - p}`).join("");
  const low = points.map(([s, , low]) => [s, low]).reverse();
  const high = points.map(([s, , , high]) => [s, high]);
  plot.setAttribute("viewBox", `0 0 ${count} 1`);
  band.setAttribute("d", path([...high, ...low]));
  line.setAttribute("d", path(points));
  axis.replaceChildren(...Array.from({ length: count / 10 + 1 }, (_, i) =>
    element("span", {}, i ? 10 * i : "step 0")));
}
