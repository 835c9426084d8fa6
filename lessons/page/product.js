// The product of matrices: in WebAssembly, made by product.py, or in JavaScript where a browser
// refuses it and for float64. Both sum in the same order however many rows there are: a token's
// log-probability does not depend on the batch.

const BINARY = "{{product}}"; // base64, put in by build.py
const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const wasm = { on: true, ...startWasm() };
const inJs = { b: new Float64Array(2 ** 16), c: new Float64Array(2 ** 20) };

function startWasm() {
  try {
    const module = new WebAssembly.Module(bytesOf(BINARY));
    const { product, memory } = new WebAssembly.Instance(module).exports;
    const [a, b, c] = [0, 1, 2].map((i) => new Float32Array(memory.buffer, i * 2 ** 22, 2 ** 20));
    return { run: product, a, b, c };
  } catch {
    return {};
  }
}

// C = A B, or C += A B: (rows, depth) x (depth, columns). A[i, k] is at i * aRow + k * aStep, where
// one step is 1, and B[k, j] at j * bColumn + k * bStep: a transposed matrix is not copied.
function product(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  const isQuick = wasm.on && wasm.run && C instanceof Float32Array, size = isQuick ? 8 : 4;
  const { a, b, c } = isQuick ? wasm : inJs, padded = Math.ceil(columns / size) * size;
  for (let j = 0; j < padded; j++) { // B in blocks of columns, in the order of their use
    let from = Math.min(j, columns - 1) * bColumn, to = (j - (j % size)) * depth + (j % size);
    for (let k = 0; k < depth; k++, from += bStep, to += size) b[to] = B[from];
  }
  if (isQuick) {
    const most = Math.ceil(rows / 4) * 4;
    a.set(A.subarray(0, rows * depth));
    wasm.run(c.byteOffset, 0, b.byteOffset, most, padded, depth, 4 * aRow, 4 * aStep);
  } else multiply(c, A, aRow, aStep, b, rows, padded, depth);
  if (!add && padded === columns) C.set(c.subarray(0, rows * columns));
  else for (let i = 0, at = 0; i < rows; i++)
    for (let from = i * padded, end = from + columns; from < end; from++, at++)
      C[at] = add ? C[at] + c[from] : c[from];
}

function multiply(C, A, aRow, aStep, B, rows, columns, depth) { // what product.py does
  for (let i = 0; i < rows; i++)
    for (let j = 0, b = 0; j < columns; j += 4) { // each number of A is used four times
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let k = 0, a = i * aRow; k < depth; k++, a += aStep, b += 4) {
        const x = A[a];
        s0 += x * B[b];
        s1 += x * B[b + 1];
        s2 += x * B[b + 2];
        s3 += x * B[b + 3];
      }
      C.set([s0, s1, s2, s3], i * columns + j);
    }
}
