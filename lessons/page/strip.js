// The film strip: a column is a step, a block a group, a bar a completion. Below it the accuracy.

import { isMixed, rewardsOf } from "./algorithms.js";
import { band } from "./lanes.js";

export const STEPS = 60; // of a training, and the fewest columns of a strip
const LONG = 32; // tokens of a bar that fills its column
const GAP = 3; // between groups, in pixels
export const FULL = 2.65; // the advantage of full colour: GRPO's of one right completion of eight

// Where the parts of a strip stand, in pixels.
function layout({ columns, trainer: { config } }, width) {
  const count = Math.max(STEPS, Math.ceil(columns.length / 20) * 20), bar = width < 500 ? 2 : 4;
  const top = config.dynamic_sampling ? 34 : 2, block = config.group_size * bar;
  const height = top + config.prompts_per_step * (block + GAP);
  return { count, step: width / count, bar, block, top, width, height };
}

// The nearest block to a column and a group that there is.
export function within(lane, column, group) {
  const nearest = (n, list) => Math.max(0, Math.min(n, list.length - 1));
  const to = nearest(column, lane.columns);
  return { lane, column: to, group: nearest(group, lane.columns[to]?.groups ?? []) };
}

// The block at the pointer, in a canvas that stands there.
export function blockAt(lane, { x, y, width }, event) {
  const { step, top, block } = layout(lane, width);
  return within(lane, Math.floor((event.clientX - x) / step),
    Math.floor((event.clientY - y - top) / (block + GAP)));
}

// Paint a column's blocks as an algorithm would push them.
function paintColumn(paint, lane, column, algorithm, { step, bar, block, top, height }, ink) {
  const { groups, thrown } = lane.columns[column], left = column * step;
  const room = step - Math.min(2, step / 5), thickness = bar > 2 ? bar - 0.6 : bar;
  const fill = (colour, x, y, width, tall) => {
    paint.fillStyle = ink(colour);
    paint.fillRect(left + x, y, width, tall);
  };
  paint.clearRect(left, 0, step, height);
  groups.forEach((group, g) => {
    const y = top + g * (block + GAP), results = lane.pushesOn(group, algorithm);
    const isSilent = !isMixed(group) && algorithm.baseline !== "critic";
    const isLost = isSilent && algorithm.dynamic_sampling; // would be replaced
    group.forEach((row, i) => {
      const A = isLost ? 0 : results[i].advantage;
      const size = Math.max(1, Math.min(1, row.ids.length / LONG) * room);
      if (A) paint.globalAlpha = 0.36 + 0.64 * Math.min(1, Math.abs(A) / FULL);
      fill(A > 0 ? "up-fill" : A < 0 ? "down-fill" : "silent", 0, y + i * bar, size, thickness);
      paint.globalAlpha = 1;
    });
    if (!isLost) return;
    paint.strokeStyle = ink("ink");
    paint.beginPath();
    paint.moveTo(left, y + block);
    paint.lineTo(left + room, y);
    paint.stroke();
  });
  for (let i = 0; i < Math.min(thrown, 40); i++) // four small squares to a line, upwards
    fill("silent", (i % 4) * step / 4, top - 5 - Math.floor(i / 4) * 3, step / 5, 2);
}

// Draw a lane's strip into a canvas, an svg and a frame. at: the block that is magnified, {column,
// group}, if it is in this strip; algorithm: by which that column is shaded. Only columns that have
// changed are painted.
export function drawStrip([canvas, svg, frame], lane, at, algorithm) {
  const place = layout(lane, canvas.parentElement.clientWidth);
  const { step, block, top, width, height } = place, scale = devicePixelRatio;
  const paint = canvas.getContext("2d"), style = getComputedStyle(canvas);
  const ink = (name) => style.getPropertyValue(`--${name}`);
  const key = [width, height, step, scale, ink("paper")].join();
  if (canvas.key !== key || canvas.painted.length > lane.columns.length) { // all is painted anew
    Object.assign(canvas, { key, width: width * scale, height: height * scale, painted: [] });
    canvas.style.height = `${height}px`;
    paint.scale(scale, scale);
    paint.fillStyle = ink("panel"); // where groups will stand
    for (let y = top; y < height; y += block + GAP) paint.fillRect(0, y, width, block);
  }
  lane.columns.forEach(({ groups }, column) => {
    const by = column === at?.column ? algorithm : lane.algorithm;
    const other = by === lane.algorithm ? "" : JSON.stringify(by);
    const look = groups.flatMap(rewardsOf).join("") + other;
    if (canvas.painted[column] !== look) paintColumn(paint, lane, column, by, place, ink);
    canvas.painted[column] = look;
  });
  frame.hidden = !at;
  frame.style = at ? `left: ${at.column * step}px; top: ${top + at.group * (block + GAP)}px; ` +
    `width: ${step}px; height: ${block}px` : "";
  drawAccuracy(svg, band(lane), place);
}

function drawAccuracy(svg, points, { step, count, width }) {
  const isNarrow = width < 500, room = isNarrow ? 38 : 48, y = (p) => room - p * (room - 6);
  const path = (list) => list.map(([s, p], i) => `${i ? "L" : "M"}${s * step} ${y(p)}`).join("");
  const text = (x, y, anchor, content, kind = "") =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" class="${kind}">${content}</text>`;
  const lines = [text(width / 2, room - 5, "middle", "held-out accuracy"),
    `<rect x="-1" y="${y(1)}" width="${width + 2}" height="${y(0) - y(1)}"/>`];
  for (let n = 0; n <= count; n += isNarrow ? 20 : 10)
    lines.push(text(n * step, room + 14, n === 0 ? "start" : n === count ? "end" : "middle",
      n || "step 0"));
  if (points.length) {
    const [last, p] = points.at(-1), isRight = last * step + 42 > width;
    const low = points.map(([s, , low]) => [s, low]).reverse();
    const high = points.map(([s, , , high]) => [s, high]);
    lines.push(`<path class="band" d="${path([...high, ...low])}"/>`,
      `<path class="line" d="${path(points)}"/>`,
      text(last * step + (isRight ? -4 : 5), y(p) + (p > 0.5 ? 16 : -7), isRight ? "end" : "start",
        `${Math.round(100 * p)} %`, "green"));
  }
  svg.setAttribute("height", room + 16);
  svg.innerHTML = lines.join("");
}
