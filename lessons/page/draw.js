// Elements, and pictures in SVG: lines over axes, and the strips of blocks of an algorithm's card.

export function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "circle", "text", "title"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function signed(x, digits = 2) { // 0.5 as +0.50
  const size = Math.abs(x).toFixed(digits);
  return Number(size) ? (x < 0 ? "−" : "+") + size : "0";
}

// A push as a colour: the share of the full colour, and of which of the two.
export function shade(weight, full) {
  const share = Math.min(1, Math.abs(weight) / full);
  return weight ? `rgb(var(--${weight > 0 ? "up" : "down"}-rgb) / ${(0.1 + 0.6 * share).toFixed(3)})` : "transparent";
}

// One row a completion, one block a token; what the clip stops is hollow. `text` says the same in words.
export function strips(rows, full, text) {
  const step = 5.4, height = 13, picture = element("svg", { viewBox: `0 0 304 ${rows.length * height}`, role: "img", "aria-label": text });
  rows.forEach((row, i) => row.tokens.forEach(({ weight, stopped }, t) => picture.append(element("rect", {
    x: (t * step + 0.7).toFixed(1), y: i * height + 1.5, width: step - 1, height: height - 4,
    style: `fill: ${shade(weight, full)}; stroke: ${stopped ? "var(--soft)" : "var(--line)"}; stroke-width: ${stopped ? 1.1 : 0.5}`,
  }))));
  return picture;
}

// What the right completions of a group get in all, and the wrong ones, as two bars from one line; at most 1 each.
export function bars(right, wrong, text) {
  const W = 420, middle = 210, wide = (x) => Math.abs(x) * 190;
  const bar = (x, y, name) => [
    element("rect", { x: x < 0 ? middle - wide(x) : middle, y, width: wide(x), height: 16, style: `fill: var(--${x < 0 ? "down" : "up"})` }),
    element("text", { x: x < 0 ? middle + 8 : middle - 8, y: y + 13, "text-anchor": x < 0 ? "start" : "end" }, `${name} ${signed(x, 3)}`)];
  return element("svg", { class: "bars", viewBox: `0 0 ${W} 46`, role: "img", "aria-label": text }, ...bar(right, 4, "right, in all"),
    ...bar(wrong, 26, "wrong, in all"), element("line", { class: "axis", x1: middle, x2: middle, y1: 0, y2: 46 }));
}

// Lines over axes. x and y: {low, high, ticks, name}; lines: {points: [[x, y]], colour, dash, dots, name, at} with the
// label beside point `at`; marks: points that are ringed. A value beyond y.high is cut off there.
export function plot({ x, y, lines, marks = [], caption, text }) {
  const W = 400, H = 250, left = 42, right = 12, top = 14, bottom = 38;
  const px = (value) => left + ((value - x.low) / (x.high - x.low)) * (W - left - right);
  const py = (value) => H - bottom - ((Math.min(value, y.high) - y.low) / (y.high - y.low)) * (H - top - bottom);
  const picture = element("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": text });
  for (const tick of y.ticks) picture.append(
    element("line", { class: "grid", x1: left, x2: W - right, y1: py(tick), y2: py(tick) }),
    element("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, String(tick)));
  for (const tick of x.ticks) picture.append(element("text", { x: px(tick), y: H - bottom + 16, "text-anchor": "middle" }, String(tick)));
  picture.append(
    element("line", { class: "axis", x1: left, x2: W - right, y1: py(y.low), y2: py(y.low) }),
    element("text", { x: (left + W - right) / 2, y: H - 5, "text-anchor": "middle" }, x.name));
  for (const { points, colour, dash, dots, name, at, dy = -8, anchor = "middle" } of lines) {
    const seen = points.filter(([, value]) => value <= y.high * 1.001);
    const path = seen.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)},${py(b).toFixed(1)}`).join("");
    picture.append(element("path", { d: path, style: `fill: none; stroke: ${colour}; stroke-width: 2; stroke-dasharray: ${dash ?? "none"}` }));
    if (dots) for (const [a, b] of seen) picture.append(element("circle", { cx: px(a), cy: py(b), r: 2.6, style: `fill: ${colour}` }));
    if (name) picture.append(element("text", { x: px(points[at][0]), y: py(points[at][1]) + dy, "text-anchor": anchor, style: `fill: ${colour}` }, name));
  }
  for (const { point: [a, b], colour } of marks) if (b <= y.high * 1.001)
    picture.append(element("circle", { cx: px(a), cy: py(b), r: 6, style: `fill: ${colour}; stroke: var(--paper); stroke-width: 2` }));
  return element("figure", {}, picture, element("figcaption", {}, caption));
}
