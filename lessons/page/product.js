// The product of matrices and the two loops of attention: in WebAssembly, made by product.py, or in
// JavaScript where a browser refuses it and for float64. Both sum in the same order however many
// rows there are: a token's log-probability does not depend on the batch.

const BINARY = "{{product}}"; // base64, put in by build.py
const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const wasm = { on: true, top: 3 * 2 ** 22 }; // the memory from top on is free
try {
  const module = new WebAssembly.Module(bytesOf(BINARY));
  const { memory: { buffer }, ...functions } = new WebAssembly.Instance(module).exports;
  const [a, b, c] = [0, 1, 2].map((i) => new Float32Array(buffer, i * 2 ** 22, 2 ** 20));
  Object.assign(wasm, functions, { buffer, a, b, c });
} catch {} // JavaScript does it

// Room for n numbers, which are not set; in WebAssembly's memory, or for float64 outside
function room(kind, n) {
  if (!wasm.buffer || kind === Float64Array) return new kind(n);
  wasm.top += 4 * n;
  return new kind(wasm.buffer, wasm.top - 4 * n, n);
}

const isInside = (array) => wasm.on && array.buffer === wasm.buffer;
const call = (name, arrays, n) => wasm[name](...arrays.map(({ byteOffset }) => byteOffset), n);

// C (pairs, HEADS): of each pair's rows, `as` of A and `bs` of B, the inner product, head by head
function dots(C, A, as, B, bs, pairs) {
  if (isInside(A)) return call("dots", [C, A, as, B, bs], pairs);
  for (let p = 0, at = 0; p < pairs; p++)
    for (let head = 0; head < WIDTH; head += HEAD, at++)
      C[at] = dot(A, as[p] * WIDTH + head, B, bs[p] * WIDTH + head, HEAD);
}

// To each pair's row `cs` of C is added its share of the row `as` of A, head by head
function spread(C, cs, shares, A, as, pairs) {
  if (isInside(A)) return call("spread", [C, cs, shares, A, as], pairs);
  for (let p = 0; p < pairs; p++)
    for (let c = 0, to = cs[p] * WIDTH, from = as[p] * WIDTH; c < WIDTH; c++)
      C[to + c] += shares[p * HEADS + Math.floor(c / HEAD)] * A[from + c];
}

// C = A B, or C += A B: (rows, depth) x (depth, columns). A[i, k] is at i * aRow + k * aStep, where
// one step is 1, and B[k, j] at j * bColumn + k * bStep: a transposed matrix is not copied.
function product(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  if (!wasm.on || !wasm.buffer || C instanceof Float64Array) return multiply(...arguments);
  const { a, b, c } = wasm, [most, width] = [4 * Math.ceil(rows / 4), 8 * Math.ceil(columns / 8)];
  for (let j = 0; j < width; j++) { // B in blocks of eight columns, in the order of their use
    let from = Math.min(j, columns - 1) * bColumn, to = (j - (j % 8)) * depth + (j % 8);
    for (let k = 0; k < depth; k++, from += bStep, to += 8) b[to] = B[from];
  }
  if (!isInside(A)) a.set(A.subarray(0, rows * depth));
  const sizes = [most, width, depth, 4 * aRow, 4 * aStep];
  wasm.product(c.byteOffset, isInside(A) ? A.byteOffset : 0, b.byteOffset, ...sizes);
  if (!add && width === columns) C.set(c.subarray(0, rows * columns));
  else for (let i = 0, at = 0; i < rows; i++)
    for (let from = i * width, end = from + columns; from < end; from++, at++)
      C[at] = add ? C[at] + c[from] : c[from];
}

function multiply(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  for (let i = 0, at = 0; i < rows; i++)
    for (let j = 0; j < columns; j++, at++) {
      let sum = 0;
      for (let k = 0, a = i * aRow, b = j * bColumn; k < depth; k++, a += aStep, b += bStep)
        sum += A[a] * B[b];
      C[at] = add ? C[at] + sum : sum;
    }
}
