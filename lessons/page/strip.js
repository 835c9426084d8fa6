// The film strip: a column is a step, a block a group, a bar a completion. Below it the accuracy.

import { isMixed } from "./algorithms.js";
import { band, rewardsIn } from "./lanes.js";

export const STEPS = 60; // of a training, and the fewest columns of a strip
const LONG = 32; // tokens of a bar that fills its column
const GAP = 3, ACCURACY = 50, NUMBERS = 16; // heights in pixels

// Where the parts of a strip stand, in pixels.
export function layout(lane, width) {
  const columns = Math.max(STEPS, Math.ceil(lane.columns.length / 20) * 20);
  const bar = width < 500 ? 2 : 4, G = lane.trainer.config.group_size;
  const top = lane.trainer.config.dynamic_sampling ? 34 : 2, block = G * bar;
  const bottom = top + lane.trainer.config.prompts_per_step * (block + GAP);
  return { columns, step: width / columns, bar, block, top, bottom, width,
    height: bottom + ACCURACY + NUMBERS };
}

// The column and the group at a point of a strip, within what there is.
export function blockAt(lane, place, x, y) {
  const column = Math.max(0, Math.min(Math.floor(x / place.step), lane.columns.length - 1));
  const group = Math.floor((y - place.top) / (place.block + GAP));
  return { column, group: Math.max(0, Math.min(group, lane.columns[column].groups.length - 1)) };
}

const inks = () => {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
};

// A push as a colour: blue up, orange down, the fuller the larger its share of `full`.
export function shade(weight, full, ink = (name) => `var(--${name})`) {
  const share = Math.min(1, Math.abs(weight) / full), fullest = ink("fullest");
  const alpha = fullest.startsWith("var") ? `calc(0.12 + ${fullest} * ${share.toFixed(3)})`
    : 0.3 + 0.7 * share;
  return weight ? `rgb(${ink(weight > 0 ? "up-rgb" : "down-rgb")} / ${alpha})` : "transparent";
}

// Draw a lane's strip. at: the block that is magnified, {column, group}, if it is in this strip;
// algorithm: by which that column is shaded.
export function drawStrip(canvas, lane, at, algorithm) {
  const place = layout(lane, canvas.parentElement.clientWidth), { step, bar, block, top } = place;
  const scale = devicePixelRatio || 1, paint = canvas.getContext("2d"), ink = inks();
  canvas.width = Math.round(place.width * scale);
  canvas.height = Math.round(place.height * scale);
  canvas.style.height = `${place.height}px`;
  paint.scale(scale, scale);
  const fill = (colour, x, y, w, h) => { paint.fillStyle = colour; paint.fillRect(x, y, w, h); };
  for (let row = 0; row < lane.trainer.config.prompts_per_step; row++) // where groups will stand
    fill(ink("panel"), 0, top + row * (block + GAP), place.width, block);
  lane.columns.forEach(({ groups, thrown }, column) => {
    const left = column * step, room = step - Math.min(2, step / 5);
    const asked = at?.column === column ? algorithm : lane.algorithm;
    groups.forEach((group, g) => {
      const y = top + g * (block + GAP), silent = !isMixed(rewardsIn(group)) && !asked.critic;
      const lost = silent && asked.dynamic_sampling;
      const results = lane.pushesOn(group, asked);
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
    for (let i = 0; i < Math.min(thrown, 44); i++) // four small squares to a line, upwards
      fill(ink("silent"), left + (i % 4) * step / 4, top - 5 - Math.floor(i / 4) * 3, step / 5, 2);
  });
  drawAccuracy(paint, lane, place, ink);
  if (at && lane.columns[at.column]) {
    const y = top + at.group * (block + GAP);
    paint.lineWidth = 2;
    paint.strokeStyle = ink("ink");
    paint.strokeRect(at.column * step - 1.5, y - 1.5, step + 1, block + 3);
  }
  return place;
}

function drawAccuracy(paint, lane, { step, bottom, columns, width }, ink) {
  const low = bottom + ACCURACY - 2, y = (p) => low - p * (ACCURACY - 10), points = band(lane);
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
  paint.textAlign = "left";
  paint.fillText("held-out accuracy, 0 to 100 %", 3, y(1) + 12);
  if (!points.length) return;
  const path = (list) => list.forEach(([s, p], i) => paint[i ? "lineTo" : "moveTo"](s * step, y(p)));
  paint.beginPath();
  path([...points.map(([s, , , high]) => [s, high]), ...points.map(([s, , less]) => [s, less]).reverse()]);
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
