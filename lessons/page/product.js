// The product of matrices: in WebAssembly, made by product.py, or in JavaScript where a browser
// refuses it and for float64. Both sum in the same order however many rows there are: a token's
// log-probability does not depend on the batch.

const BINARY = "{{product}}"; // base64, put in by build.py
const DEEPEST = 256; // most columns of A, and most rows that are multiplied at once

export const wasm = { on: true, ...startWasm() };

function startWasm() {
  try {
    const bytes = Uint8Array.from(atob(BINARY), (letter) => letter.charCodeAt(0));
    const { product, memory } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;
    const [a, b, c] = [0, 1, 2].map((i) => new Float32Array(memory.buffer, i * 2 ** 18, 2 ** 16));
    return { run: product, a, b, c };
  } catch {
    return {};
  }
}

// C = A B, or C += A B: (rows, depth) x (depth, columns), depth at most 256. A[i, k] is at i * aRow
// + k * aStep, one of them 1, and B[k, j] at j * bColumn + k * bStep, so a transposed matrix needs
// no function of its own.
export function product(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  const quick = wasm.on && wasm.run && C instanceof Float32Array;
  const multiply = quick ? productInWasm : productInJs;
  multiply(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add);
}

const packed = new Float64Array(DEEPEST * DEEPEST);

// Copy B into blocks of `size` columns, in the order of their use. Beyond the last column stands
// the last one again. -> the number of columns in all blocks
function arrange(blocks, size, B, bColumn, bStep, columns, depth) {
  const padded = Math.ceil(columns / size) * size;
  for (let j = 0; j < padded; j++) {
    let from = Math.min(j, columns - 1) * bColumn, to = (j - (j % size)) * depth + (j % size);
    for (let k = 0; k < depth; k++, from += bStep, to += size) blocks[to] = B[from];
  }
  return padded;
}

function productInWasm(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  const { run, a, b, c } = wasm, padded = arrange(b, 8, B, bColumn, bStep, columns, depth);
  for (let i = 0; i < rows; i += DEEPEST) { // more than one part only where rows stand one by one
    const n = Math.min(rows - i, DEEPEST), most = Math.ceil(n / 4) * 4, end = (i + n) * columns;
    a.set(A.subarray(i * aRow, i * aRow + n * depth));
    run(c.byteOffset, 0, b.byteOffset, most, padded, depth, 4 * aRow, 4 * aStep);
    if (!add && padded === columns) C.set(c.subarray(0, n * columns), i * columns);
    else {
      for (let at = i * columns, row = 0; at < end; row += padded)
        for (let j = row; j < row + columns; j++, at++) C[at] = add ? C[at] + c[j] : c[j];
    }
  }
}

function productInJs(C, A, aRow, aStep, B, bColumn, bStep, rows, columns, depth, add) {
  arrange(packed, 4, B, bColumn, bStep, columns, depth);
  for (let i = 0; i < rows; i++)
    // four at a time: each number of A is used four times
    for (let j = 0, at = 0; j < columns; j += 4) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let k = 0, from = i * aRow; k < depth; k++, from += aStep, at += 4) {
        const x = A[from];
        s0 += x * packed[at]; s1 += x * packed[at + 1];
        s2 += x * packed[at + 2]; s3 += x * packed[at + 3];
      }
      const sums = [s0, s1, s2, s3], first = i * columns + j;
      for (let x = 0; x < 4 && j + x < columns; x++) C[first + x] = sums[x] + (add && C[first + x]);
    }
}
