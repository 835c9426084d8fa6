// The task of toy_env/arithmetic.py: problems and the verifier. And random numbers from a seed.

const encode = (text) => [BOS, ...Array.from(text, (letter) => TOKENS.indexOf(letter))];
const textOf = (ids) => ids.filter((id) => id !== EOS).map((id) => TOKENS[id]).join("");

// The integer after the last "#", or null.
function answer(completion) {
  const match = completion.match(/#([+-]?)0*([0-9]{1,9})$/);
  return match && Number(match[1] + match[2]);
}

// The value of a chain such as 29+46-36, and why it is not a problem of the task, or null.
function read(expression) {
  let total = 0, before = "";
  const fault = (text) => ({ fault: text }), minus = (text) => String(text).replace("-", "−");
  if (!/^\d+([+-]\d+){1,4}$/.test(expression))
    return fault("type one to four + or −, such as 29+46−36");
  for (const [part] of expression.matchAll(/[+-]?\d+/g)) {
    if (!/^[+-]?[1-9]\d?$/.test(part) || Math.abs(part) > 50)
      return fault(`its numbers must be 1 to 50, and ${part.replace(/\D/, "")} is not`);
    total += Number(part);
    before += minus(part);
    if (total < 0 || total > 99)
      return fault(`${before} = ${minus(total)}, and every running total must be 0 to 99`);
  }
  return { total, fault: null };
}

const value = (expression) => read(expression).total ?? null;

// one to four operations, by rejection; held-out problems included
function drawProblem(random) {
  const integer = (n) => Math.floor(random() * n), operations = 1 + integer(4);
  for (;;) {
    let expression = String(1 + integer(50));
    for (let i = 0; i < operations; i++) expression += "+-"[integer(2)] + (1 + integer(50));
    if (value(expression) !== null) return expression;
  }
}

// Random numbers in [0, 1) from a seed (mulberry32), so that a group can be drawn again.
function stream(seed) {
  return () => {
    let t = (seed = (seed + 0x6d2b79f5) | 0);
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
