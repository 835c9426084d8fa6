// The product of matrices and the loops of attention: in WebAssembly (product.py), or in JavaScript
// for float64 and where a browser refuses it. A row is summed alike in any batch.

const BINARY = "{{product}}"; // base64, put in by build.py
const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const wasm = { on: true, top: 2 ** 23 }; // the memory from top on is free
try {
  const module = new WebAssembly.Module(bytesOf(BINARY));
  const { memory: { buffer }, ...functions } = new WebAssembly.Instance(module).exports;
  const [b, c] = [0, 2 ** 22].map((at) => new Float32Array(buffer, at, 2 ** 20));
  Object.assign(wasm, functions, { buffer, b, c });
} catch {} // JavaScript does it

// Room for n numbers, which are not set; in WebAssembly's memory, or for float64 outside
function room(kind, n) {
  if (!wasm.buffer || kind === Float64Array) return new kind(n);
  wasm.top += 4 * n;
  return new kind(wasm.buffer, wasm.top - 4 * n, n);
}

const eightfold = (n) => 8 * Math.ceil(n / 8); // the next multiple of 8
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

// The transpose of the weights W (columns, depth), in rows of `width` numbers; W keeps it
function turned(W, columns, depth, width) {
  if (W.turned) return W.turned;
  const B = W.turned = new Float32Array(depth * width);
  for (let j = 0, from = 0; j < columns; j++)
    for (let k = 0, to = j; k < depth; k++, from++, to += width) B[to] = W[from];
  return B;
}

// C = A B, or C += A B: (rows, depth) x (depth, columns). A[i, k] is at i * aRow + k * aStep, where
// one is 1. B is its rows, or with isTurned the weights B^T, which do not change. A row of B or C
// has a multiple of 8 numbers, and the memory of A and C is room for a multiple of 4 rows.
function product(C, A, aRow, aStep, B, isTurned, rows, columns, depth, add) {
  if (!wasm.on || !wasm.buffer || C instanceof Float64Array) return multiply(...arguments);
  const width = eightfold(columns), most = 4 * Math.ceil(rows / 4);
  const { b, c } = wasm, to = isInside(C) ? C : c;
  if (!add) to.fill(0, 0, most * width);
  else if (to === c) c.set(C);
  if (!isInside(B)) b.set(isTurned ? turned(B, columns, depth, width) : B);
  const from = isInside(B) ? B : b, sizes = [most, width, depth, 4 * aRow, 4 * aStep];
  wasm.product(to.byteOffset, A.byteOffset, from.byteOffset, ...sizes);
  if (to === c) C.set(c.subarray(0, C.length));
}

function multiply(C, A, aRow, aStep, B, isTurned, rows, columns, depth, add) {
  const [bColumn, bStep] = isTurned ? [depth, 1] : [1, columns];
  for (let i = 0; i < rows; i++)
    for (let j = 0, at = i * eightfold(columns); j < columns; j++, at++) {
      let sum = 0;
      for (let k = 0, a = i * aRow, b = j * bColumn; k < depth; k++, a += aStep, b += bStep)
        sum += A[a] * B[b];
      C[at] = add ? C[at] + sum : sum;
    }
}
