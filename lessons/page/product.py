"""Assemble the product of matrices of lessons/group.html in WebAssembly, with four numbers to an
instruction (SIMD). build.py puts the binary into the page; product.js calls it.

    python lessons/page/product.py        writes product.wasm into the working directory
"""

from pathlib import Path

ROWS, COLUMNS = 4, 8  # of the block of C that is held in registers: 4 x 2 vectors of 4 numbers
I32, V128, NOTHING = 0x7F, 0x7B, 0x40  # types
PARAMETERS = ["c", "a", "b", "rows", "columns", "depth", "row_step", "step"]
COUNTERS = ["j", "k", "to", "from", "width"] + [f"a{r}" for r in range(ROWS)]
VECTORS = ["b0", "b1", "t"] + [f"s{r}{half}" for r in range(ROWS) for half in (0, 1)]
LOCALS = PARAMETERS + COUNTERS + VECTORS
# Instructions without operands
ADD, SUBTRACT, MULTIPLY, END = b"\x6a", b"\x6b", b"\x6c", b"\x0b"
ADD_VECTORS, MULTIPLY_VECTORS = b"\xfd\xe4\x01", b"\xfd\xe6\x01"
ZERO_VECTOR = b"\xfd\x0c" + bytes(16)


def number(n: int, limit: int = 128) -> bytes:
    """A whole number from 0 on as LEB128: seven bits a byte, the lowest first. A signed one keeps a
    bit for the sign, so its last byte is below 64."""
    parts = bytearray()
    while n >= limit:
        parts.append(n & 127 | 128)
        n >>= 7
    return bytes([*parts, n])


def get(name: str) -> bytes:
    return b"\x20" + number(LOCALS.index(name))


def put(name: str, *value: bytes) -> bytes:
    return b"".join(value) + b"\x21" + number(LOCALS.index(name))


def increase(name: str, amount: bytes) -> bytes:
    return put(name, get(name), amount, ADD)


def constant(n: int) -> bytes:
    return b"\x41" + number(n, limit=64)


def load(address: bytes, offset: int = 0, splat: bool = False) -> bytes:
    """Four numbers, or one number four times."""
    return address + (b"\xfd\x09" if splat else b"\xfd\x00") + b"\x02" + number(offset)


def store(address: bytes, value: bytes, offset: int) -> bytes:
    return address + value + b"\xfd\x0b\x02" + number(offset)


def repeat(counter: str, size: int, *body: bytes) -> bytes:
    """The body, again while the counter, less `size` each time, is not 0."""
    left = put(counter, get(counter), constant(size), SUBTRACT) + get(counter)
    return b"".join([b"\x03", bytes([NOTHING]), *body, left, b"\x0d\x00", END])


def block() -> bytes:
    """A block of C: ROWS rows of A times COLUMNS columns of B, whose numbers stand in the order of
    their use."""
    starts = [put("a0", get("from"))]
    starts += [put(f"a{r}", get(f"a{r - 1}"), get("row_step"), ADD) for r in range(1, ROWS)]
    sums = [f"s{r}{half}" for r in range(ROWS) for half in (0, 1)]
    starts += [put(name, ZERO_VECTOR) for name in sums]
    terms = [put(f"b{half}", load(get("b"), 16 * half)) for half in (0, 1)]
    for r in range(ROWS):
        terms.append(put("t", load(get(f"a{r}"), splat=True)))
        for half in (0, 1):
            product = get("t") + get(f"b{half}") + MULTIPLY_VECTORS
            terms.append(put(f"s{r}{half}", get(f"s{r}{half}"), product, ADD_VECTORS))
        terms.append(increase(f"a{r}", get("step")))
    terms.append(increase("b", constant(4 * COLUMNS)))
    ends = [put("to", get("c"))]
    for r in range(ROWS):
        ends += [store(get("to"), get(f"s{r}{half}"), 16 * half) for half in (0, 1)]
        ends.append(increase("to", get("width")))
    ends.append(increase("c", constant(4 * COLUMNS)))
    return b"".join([*starts, put("k", get("depth")), repeat("k", 1, *terms), *ends])


def function() -> bytes:
    """product(c, a, b, rows, columns, depth, row_step, step): addresses, sizes, and the steps of A
    in bytes. `rows` is a multiple of ROWS, `columns` of COLUMNS; C (rows, columns) is
    overwritten."""
    size = get("depth") + get("columns") + MULTIPLY + constant(4) + MULTIPLY  # of B in bytes
    body = [
        put("width", get("columns"), constant(4), MULTIPLY),
        put("from", get("a")),
        repeat(
            "rows",
            ROWS,
            put("j", get("columns")),
            repeat("j", COLUMNS, block()),
            put("b", get("b"), size, SUBTRACT),  # to its start again
            increase("from", get("row_step") + constant(ROWS) + MULTIPLY),
            increase("c", get("width") + constant(ROWS - 1) + MULTIPLY),
        ),
    ]
    kinds = [(len(COUNTERS), I32), (len(VECTORS), V128)]
    declared = number(len(kinds)) + b"".join(number(n) + bytes([kind]) for n, kind in kinds)
    return declared + b"".join(body) + END


def binary(pages: int = 16) -> bytes:
    """The module: its function `product`, and a memory `memory` of so many pages of 64 KiB."""

    def sized(content: bytes) -> bytes:
        return number(len(content)) + content

    def named(name: str, kind: int) -> bytes:
        return sized(name.encode()) + bytes([kind, 0])

    sections = {
        1: b"\x01\x60" + sized(bytes([I32] * len(PARAMETERS))) + b"\x00",  # one type
        3: b"\x01\x00",  # one function, of that type
        5: b"\x01\x00" + number(pages),
        7: b"\x02" + named("product", 0) + named("memory", 2),
        10: b"\x01" + sized(function()),
    }
    content = b"".join(bytes([section]) + sized(part) for section, part in sections.items())
    return b"\x00asm\x01\x00\x00\x00" + content


if __name__ == "__main__":
    path = Path("product.wasm")
    path.write_bytes(binary())
    print(f"{path}: {path.stat().st_size} bytes")
