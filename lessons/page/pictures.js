// Elements, and pictures in SVG: blocks for tokens, lines over axes.

export const $ = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "path", "circle", "text"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const picture = (width, height, spoken, attributes = {}) =>
  element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken, ...attributes });

export function signed(x, digits = 2) { // 0.5 as +0.50
  const size = Math.abs(x).toFixed(digits);
  return Number(size) ? (x < 0 ? "−" : "+") + size : "0";
}

// A push as a colour: blue up, orange down, the fuller the larger its share of `full`.
export function shade(weight, full) {
  const share = Math.min(1, Math.abs(weight) / full).toFixed(3);
  return weight ? `rgb(var(--${weight > 0 ? "up" : "down"}-rgb) / calc(0.1 + var(--fullest) * ${share}))` : "transparent";
}

// One row per completion, one block per token; the tokens that the clip stops are crossed out.
export function blocks(rows, full, spoken) {
  const step = 5.4, height = 13, made = picture(304, rows.length * height, spoken);
  rows.forEach((row, i) => row.tokens.forEach(({ weight, stopped }, t) => {
    const x = t * step + 0.7, y = i * height + 1.5, w = step - 1, h = height - 4;
    made.append(element("rect", { class: "block", x: x.toFixed(1), y, width: w, height: h, style: `fill: ${shade(weight, full)}` }));
    if (stopped) made.append(element("path", { class: "stopped", d: `M${x},${y}l${w},${h}m0,${-h}l${-w},${h}` }));
  }));
  return made;
}

// Lines over axes. x and y: {low, high, ticks, name}; lines: {points: [[x, y]], colour, dash, dots, name, at, ink} with the
// name, in the colour `ink`, beside point `at`; marks: points that are ringed; at: an x to be marked. A value beyond y.high is left out.
export function plot({ width: W = 400, height: H = 250, x, y, lines, marks = [], at = null, caption, spoken }) {
  const left = 42, right = 12, top = 10, bottom = x.name ? 38 : 20;
  const px = (value) => left + ((value - x.low) / (x.high - x.low)) * (W - left - right);
  const py = (value) => H - bottom - ((value - y.low) / (y.high - y.low)) * (H - top - bottom);
  const made = picture(W, H, spoken);
  for (const tick of y.ticks) made.append(
    element("line", { class: "grid", x1: left, x2: W - right, y1: py(tick), y2: py(tick) }),
    element("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, String(tick)));
  for (const tick of x.ticks) made.append(element("text", { x: px(tick), y: H - bottom + 16, "text-anchor": "middle" }, String(tick)));
  made.append(element("line", { class: "axis", x1: left, x2: W - right, y1: py(y.low), y2: py(y.low) }));
  if (x.name) made.append(element("text", { x: (left + W - right) / 2, y: H - 5, "text-anchor": "middle" }, x.name));
  if (at !== null) made.append(element("line", { class: "at", x1: px(at), x2: px(at), y1: py(y.low), y2: py(y.high) }));
  for (const { points, colour, ink = colour, dash = "none", dots, name, at, dy = -8, anchor = "middle" } of lines) {
    const seen = points.filter(([, value]) => value <= y.high);
    const path = seen.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)},${py(b).toFixed(1)}`).join("");
    made.append(element("path", { d: path, style: `fill: none; stroke: ${colour}; stroke-width: 2; stroke-dasharray: ${dash}` }));
    if (dots) for (const [a, b] of seen) made.append(element("circle", { cx: px(a), cy: py(b), r: 2.6, style: `fill: ${colour}` }));
    if (name) made.append(element("text", { x: px(points[at][0]), y: py(points[at][1]) + dy, "text-anchor": anchor, style: `fill: ${ink}` }, name));
  }
  for (const { point: [a, b], colour } of marks.filter(({ point }) => point[1] <= y.high))
    made.append(element("circle", { cx: px(a), cy: py(b), r: 6, style: `fill: ${colour}; stroke: var(--paper); stroke-width: 2` }));
  return element("figure", {}, made, element("figcaption", {}, ...(typeof caption === "string" ? [`${caption} ${spoken}`] : caption)));
}
