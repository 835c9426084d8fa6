// A picture with sliders: assembles the frame for their positions from its lines (in the format that lessons/workshop/site/drawn.py
// describes) and shows it. The frames of each picture and width are a file, which is loaded when a slider is moved first.
"use strict";
window.drawn = {};
const phone = matchMedia("(max-width: 700px)");
const loading = {};

function load(name) {
  loading[name] ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = `${name}.js`;
    script.onload = () => resolve(drawn[name]);
    script.onerror = () => console.error(`${name}.js is missing: python lessons/workshop/site/website.py --draw`);
    document.head.append(script);
  });
  return loading[name];
}

for (const figure of document.querySelectorAll("figure[data-picture]")) {
  const image = figure.querySelector("img");
  const inputs = [...figure.querySelectorAll("input")];
  const together = figure.dataset.together === "yes";
  let shown = "", moved = false;

  async function draw() {
    const narrow = phone.matches;
    const { lines, frames } = await load(`${figure.dataset.picture}-${narrow ? "narrow" : "wide"}`);
    if (narrow !== phone.matches) return draw();
    const frame = frames[inputs.map((input) => input.value).join()];
    const before = shown;
    shown = URL.createObjectURL(new Blob([frame.map((i) => lines[i]).join("\n")], { type: "image/svg+xml" }));
    figure.querySelector("source").srcset = image.src = shown;
    await image.decode().catch(() => {});
    if (before) URL.revokeObjectURL(before);
  }

  function write() {
    for (const input of inputs) {
      const text = JSON.parse(input.dataset.values)[input.value];
      input.nextElementSibling.value = text;
      input.setAttribute("aria-valuetext", text);
    }
  }

  for (const input of inputs)
    input.addEventListener("input", () => {
      if (!together) for (const other of inputs) if (other !== input) other.value = other.defaultValue;
      write();
      moved = true;
      draw();
    });
  phone.addEventListener("change", () => moved && draw());
  write();
  figure.querySelector(".sliders").hidden = false;
}
