"""Assemble the product of matrices of lessons/group.html in WebAssembly, with four numbers to an
instruction (SIMD). build.py puts the binary into the page; product.js calls it.

    python lessons/page/product.py        writes product.wasm into the working directory
"""

from pathlib import Path

I32, V128 = 0x7F, 0x7B  # types
PARAMETERS = ["c", "a", "b", "rows", "columns", "depth", "row_step", "step"]
COUNTERS = ["j", "k", "to", "from", "width", "a0", "a1", "a2", "a3"]
VECTORS = ["b0", "b1", "t", "s00", "s01", "s10", "s11", "s20", "s21", "s30", "s31"]
LOCALS = PARAMETERS + COUNTERS + VECTORS
OPCODES = {
    "loop": "03 40", "br_if": "0d", "end": "0b", "get": "20", "set": "21", "tee": "22",
    "const": "41", "add": "6a", "sub": "6b", "mul": "6c", "load": "fd 00 02", "splat": "fd 09 02",
    "store": "fd 0b 02", "zeros": "fd 0c" + 16 * " 00", "add4": "fd e4 01", "mul4": "fd e6 01",
}  # fmt: skip


def four(text: str) -> str:
    """The text for each of four rows, whose number stands for #."""
    return " ".join(text.replace("#", str(row)) for row in range(4))


TERM = """get a# splat 0 set t get a# get step add set a#
get s#0 get t get b0 mul4 add4 set s#0 get s#1 get t get b1 mul4 add4 set s#1"""
# product(c, a, b, rows, columns, depth, row_step, step): addresses, sizes, and the steps of A in
# bytes. `rows` is a multiple of 4, `columns` of 8. C (rows, columns) is overwritten; the numbers of
# B stand in the order of their use. A block of C, 4 x 8 numbers, is summed in the registers s##.
PRODUCT = f"""
get columns const 4 mul set width
loop
  get columns set j
  loop
    get a set from
    {four("get from set a# get from get row_step add set from")}
    {four("zeros set s#0 zeros set s#1")}
    get depth set k
    loop
      get b load 0 set b0 get b load 16 set b1
      {four(TERM)}
      get b const 32 add set b
      get k const 1 sub tee k br_if 0
    end
    get c set to
    {four("get to get s#0 store 0 get to get s#1 store 16 get to get width add set to")}
    get c const 32 add set c
    get j const 8 sub tee j br_if 0
  end
  get a get row_step const 4 mul add set a
  get b get width get depth mul sub set b
  get c get width const 3 mul add set c
  get rows const 4 sub tee rows br_if 0
end
end"""


def assemble(text: str) -> bytes:
    """The binary of instructions; an operand is a local or a number below 64."""
    code = bytearray()
    for word in text.split():
        if word in OPCODES:
            code += bytes.fromhex(OPCODES[word])
        else:
            code.append(LOCALS.index(word) if word in LOCALS else int(word))
    return bytes(code)


def sized(content: bytes) -> bytes:
    """The content after its length in LEB128: seven bits a byte, the lowest first."""
    low, high = len(content) & 127, len(content) >> 7
    return bytes([low | 128, high] if high else [low]) + content


def binary() -> bytes:
    """The module: its function `product`, and its memory `memory`."""
    kinds = bytes([2, len(COUNTERS), I32, len(VECTORS), V128])
    sections = {
        1: b"\x01\x60" + sized(bytes([I32] * len(PARAMETERS))) + b"\x00",  # one type
        3: b"\x01\x00",  # one function, of that type
        5: b"\x01\x00\xc0\x01",  # 192 pages of 64 KiB, a third for each matrix
        7: b"\x02" + sized(b"product") + b"\x00\x00" + sized(b"memory") + b"\x02\x00",
        10: b"\x01" + sized(kinds + assemble(PRODUCT)),
    }
    content = b"".join(bytes([section]) + sized(part) for section, part in sections.items())
    return b"\x00asm\x01\x00\x00\x00" + content


if __name__ == "__main__":
    path = Path("product.wasm")
    path.write_bytes(binary())
    print(f"{path}: {path.stat().st_size} bytes")
