// The film strip: a column is a step, a block a group, a bar a completion. Below it the accuracy.

import { isMixed } from "./algorithms.js";
import { band, rewardsIn } from "./lanes.js";

export const STEPS = 60; // of a training, and the fewest columns of a strip
const LONG = 32; // tokens of a bar that fills its column
const GAP = 3, NUMBERS = 16; // heights in pixels

// Where the parts of a strip stand, in pixels.
export function layout(lane, width) {
  const columns = Math.max(STEPS, Math.ceil(lane.columns.length / 20) * 20);
  const bar = width < 500 ? 2 : 4, G = lane.trainer.config.group_size;
  const top = lane.trainer.config.dynamic_sampling ? 34 : 2, block = G * bar;
  const bottom = top + lane.trainer.config.prompts_per_step * (block + GAP);
  const low = bottom + (width < 500 ? 38 : 48); // where the accuracy is 0
  const step = width / columns, height = low + NUMBERS;
  return { columns, step, bar, block, top, bottom, low, width, height };
}

// The column and the group at a point of a strip, within what there is.
export function blockAt(lane, place, x, y) {
  const column = Math.max(0, Math.min(Math.floor(x / place.step), lane.columns.length - 1));
  const group = Math.floor((y - place.top) / (place.block + GAP));
  return { column, group: Math.max(0, Math.min(group, lane.columns[column].groups.length - 1)) };
}

const inks = () => { // the page's colours by name
  const style = getComputedStyle(document.documentElement), known = {};
  return (name) => (known[name] ??= style.getPropertyValue(`--${name}`).trim());
};

// A push as a colour: blue up, orange down, the fuller the larger its share of `full`.
export function shade(weight, full, ink = (name) => `var(--${name})`) {
  const share = Math.min(1, Math.abs(weight) / full), fullest = ink("fullest");
  const alpha = fullest.startsWith("var") ? `calc(0.12 + ${fullest} * ${share.toFixed(3)})`
    : 0.36 + 0.64 * share;
  return weight ? `rgb(${ink(weight > 0 ? "up-rgb" : "down-rgb")} / ${alpha})` : "transparent";
}

// Paint a column's blocks as an algorithm would push them.
function paintColumn(paint, lane, column, algorithm, { step, bar, block, top }, ink) {
  const { groups, thrown } = lane.columns[column], left = column * step;
  const room = step - Math.min(2, step / 5);
  const fill = (colour, x, y, w, h) => { paint.fillStyle = colour; paint.fillRect(x, y, w, h); };
  fill(ink("paper"), left, 0, step, top - 2);
  groups.forEach((group, g) => {
    const y = top + g * (block + GAP), silent = !isMixed(rewardsIn(group)) && !algorithm.critic;
    const lost = silent && algorithm.dynamic_sampling, results = lane.pushesOn(group, algorithm);
    fill(ink("paper"), left, y, step, block);
    group.forEach((row, i) => {
      const A = results[i].advantage, size = Math.min(1, row.ids.length / LONG) * room;
      const colour = A && !lost ? shade(A, 2.65, ink) : ink("silent");
      fill(colour, left, y + i * bar, Math.max(1, size), bar - (bar > 2 ? 0.6 : 0));
    });
    if (lost) { // would be replaced
      paint.strokeStyle = ink("ink");
      paint.beginPath();
      paint.moveTo(left, y + block);
      paint.lineTo(left + room, y);
      paint.stroke();
    }
  });
  for (let i = 0; i < Math.min(thrown, 40); i++) // four small squares to a line, upwards
    fill(ink("silent"), left + (i % 4) * step / 4, top - 5 - Math.floor(i / 4) * 3, step / 5, 2);
}

// Draw a lane's strip. at: the block that is magnified, {column, group}, if it is in this strip;
// algorithm: by which that column is shaded. `base` keeps the columns as they were trained on, so
// that only what has changed is painted.
export function drawStrip(canvas, base, lane, at, algorithm) {
  const place = layout(lane, canvas.parentElement.clientWidth), { step, block, top } = place;
  const scale = devicePixelRatio || 1, paint = canvas.getContext("2d"), ink = inks();
  const key = [place.width, place.height, step, scale, ink("paper")].join();
  const below = base.getContext("2d");
  if (base.key !== key) {
    for (const one of [canvas, base]) {
      one.width = Math.round(place.width * scale);
      one.height = Math.round(place.height * scale);
      one.getContext("2d").scale(scale, scale);
    }
    Object.assign(base, { key, painted: [] });
    canvas.style.height = `${place.height}px`;
    below.fillStyle = ink("panel"); // where groups will stand
    for (let row = 0; row < lane.trainer.config.prompts_per_step; row++)
      below.fillRect(0, top + row * (block + GAP), place.width, block);
  }
  lane.columns.forEach(({ groups }, column) => {
    const rewards = groups.flatMap(rewardsIn).join("");
    if (base.painted[column] === rewards) return;
    base.painted[column] = rewards;
    paintColumn(below, lane, column, lane.algorithm, place, ink);
  });
  paint.clearRect(0, 0, place.width, place.height);
  paint.drawImage(base, 0, 0, place.width, place.height);
  if (at && algorithm !== lane.algorithm)
    paintColumn(paint, lane, at.column, algorithm, place, ink);
  drawAccuracy(paint, lane, place, ink);
  if (at && lane.columns[at.column]) {
    paint.lineWidth = 2;
    paint.strokeStyle = ink("ink");
    const y = top + at.group * (block + GAP);
    paint.strokeRect(at.column * step - 1.5, y - 1.5, step + 1, block + 3);
  }
}

function drawAccuracy(paint, lane, { step, bottom, low, columns, width }, ink) {
  const y = (p) => low - p * (low - bottom - 6), points = band(lane);
  paint.font = "11px system-ui, sans-serif";
  paint.fillStyle = ink("soft");
  paint.textAlign = "center";
  for (let number = 0; number <= columns; number += width < 500 ? 20 : 10) {
    paint.textAlign = number === 0 ? "left" : number === columns ? "right" : "center";
    paint.fillText(number === 0 ? "step 0" : String(number), number * step, low + 14);
  }
  paint.strokeStyle = ink("line");
  paint.lineWidth = 1;
  paint.strokeRect(-1, y(1) - 0.5, width + 2, y(0) - y(1));
  paint.textAlign = "center";
  paint.fillText("held-out accuracy", width / 2, low - 5);
  if (!points.length) return;
  const path = (list) => list.forEach(([s, p], i) =>
    paint[i ? "lineTo" : "moveTo"](s * step, y(p)));
  paint.beginPath();
  path([...points.map(([s, , , high]) => [s, high]),
    ...points.map(([s, , less]) => [s, less]).reverse()]);
  paint.fillStyle = `rgb(${ink("green-rgb")} / .2)`;
  paint.fill();
  paint.beginPath();
  path(points);
  paint.strokeStyle = ink("green");
  paint.lineWidth = 2;
  paint.stroke();
  const [last, p] = points.at(-1), text = `${Math.round(100 * p)} %`;
  paint.fillStyle = ink("green");
  paint.font = "bold 12px system-ui, sans-serif";
  const right = last * step + 42 > width;
  paint.textAlign = right ? "right" : "left";
  paint.fillText(text, last * step + (right ? -4 : 5), y(p) + (p > 0.5 ? 16 : -7));
}
