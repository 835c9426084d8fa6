"""Assemble the product of matrices and the two loops of attention of lessons/group.html in
WebAssembly, with four numbers to an instruction (SIMD). build.py puts the binary into the page;
product.js calls it.
"""

I32, V128 = 0x7F, 0x7B  # types
PARAMETERS = {  # of each function, eight numbers: addresses, sizes, and steps in bytes
    "product": "c a b rows columns depth row_step step",
    "dots": "c a a_rows b b_rows pairs _ _",
    "spread": "c c_rows shares a a_rows pairs _ _",
}
COUNTERS = "j k to from at width a0 a1 a2 a3"
VECTORS = "b0 b1 t s00 s01 s10 s11 s20 s21 s30 s31"
OPCODES = {
    "loop": "03 40", "br_if": "0d", "end": "0b", "get": "20", "set": "21", "tee": "22",
    "const": "41", "add": "6a", "sub": "6b", "mul": "6c", "shl": "74", "index": "28 02",
    "load": "fd 00 02", "splat": "fd 09 02", "store": "fd 0b 02", "zeros": "fd 0c" + 16 * " 00",
    "add4": "fd e4 01", "mul4": "fd e6 01",
    # of the eight numbers in two vectors the first, third, fifth and seventh, or the others
    "even": "fd 0d 00 01 02 03 08 09 0a 0b 10 11 12 13 18 19 1a 1b",
    "odd": "fd 0d 04 05 06 07 0c 0d 0e 0f 14 15 16 17 1c 1d 1e 1f",
}  # fmt: skip


def over(numbers: range, text: str) -> str:
    """The text for each of the numbers, which stands for #."""
    return " ".join(text.replace("#", str(number)) for number in numbers)


TERM = """get a# splat 0 set t get a# get step add set a#
get s#0 get t get b0 mul4 add4 set s#0 get s#1 get t get b1 mul4 add4 set s#1"""
# C (rows, columns) += A B. `rows` is a multiple of 4, `columns` of 8. A block of C, 4 x 8 numbers,
# is summed in the registers s##.
PRODUCT = f"""
get columns const 4 mul set width
loop
  get columns set j
  loop
    get a set from
    {over(range(4), "get from set a# get from get row_step add set from")}
    get c set to
    {over(range(4), "get to load 0 set s#0 get to load 16 set s#1 get to get width add set to")}
    get depth set k get b set at
    loop
      get at load 0 set b0 get at load 16 set b1
      {over(range(4), TERM)}
      get at get width add set at
      get k const 1 sub tee k br_if 0
    end
    get c set to
    {over(range(4), "get to get s#0 store 0 get to get s#1 store 16 get to get width add set to")}
    get c const 32 add set c get b const 32 add set b
    get j const 8 sub tee j br_if 0
  end
  get a get row_step const 4 mul add set a
  get b get width sub set b
  get c get width const 3 mul add set c
  get rows const 4 sub tee rows br_if 0
end
end"""

# The loops of attention: rows have 64 numbers, 16 of each of four heads, and a pair is one row of A
# and one of B or C, by the numbers in a_rows and b_rows or c_rows. The next pair follows.
NEXT = "get c_rows const 4 add set c_rows get a_rows const 4 add set a_rows"
PAIR = f"{NEXT} get pairs const 1 sub tee pairs br_if 0 end end"


def places(head: int) -> range:
    """Of a head's four vectors in a row, in bytes."""
    return range(64 * head, 64 * head + 64, 16)


def of_head(head: int) -> str:
    """A vector whose four numbers add up to the inner product of a head's."""
    terms = over(places(head), "get from load # get to load # mul4 add4")
    return f"zeros {terms} set s{head}0"


# c (pairs, 4): of each pair the inner products of its rows, head by head
DOTS = f"""
loop
  get a get a_rows index 0 const 8 shl add set from
  get b get b_rows index 0 const 8 shl add set to
  {" ".join(map(of_head, range(4)))}
  get s00 get s10 even get s00 get s10 odd add4 set b0
  get s20 get s30 even get s20 get s30 odd add4 set b1
  get c get b0 get b1 even get b0 get b1 odd add4 store 0
  get c const 16 add set c
  {PAIR.replace("c_rows", "b_rows")}"""


def share(head: int) -> str:
    """Add a head's share of a row of A to the row of C."""
    added = over(places(head), "get to get to load # get from load # get t mul4 add4 store #")
    return f"get shares splat {4 * head} set t {added}"


# C += shares (pairs, 4) times the rows of A, head by head
SPREAD = f"""
loop
  get c get c_rows index 0 const 8 shl add set to
  get a get a_rows index 0 const 8 shl add set from
  {" ".join(map(share, range(4)))}
  get shares const 16 add set shares
  {PAIR}"""
FUNCTIONS = {"product": PRODUCT, "dots": DOTS, "spread": SPREAD}


def number(n: int) -> bytes:
    """A number below 16,384 in LEB128: seven bits a byte, the lowest first."""
    return bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7])


def sized(content: bytes) -> bytes:
    """The content after its length."""
    return number(len(content)) + content


def assemble(name: str) -> bytes:
    """The binary of a function; an operand is a local or a number."""
    names = f"{PARAMETERS[name]} {COUNTERS} {VECTORS}".split()
    counts = [2, len(COUNTERS.split()), I32, len(VECTORS.split()), V128]
    code = bytearray(counts)
    for word in FUNCTIONS[name].split():
        if word in OPCODES:
            code += bytes.fromhex(OPCODES[word])
        else:
            code += number(names.index(word) if word in names else int(word))
    return bytes(code)


def binary() -> bytes:
    """The module: its functions, all of one type, and its memory."""
    n = len(FUNCTIONS)
    exports = [sized(name.encode()) + bytes([0, i]) for i, name in enumerate(FUNCTIONS)]
    exports.append(sized(b"memory") + b"\x02\x00")
    sections = {
        1: b"\x01\x60" + sized(bytes(8 * [I32])) + b"\x00",  # the type
        3: bytes([n] + n * [0]),  # functions of that type
        5: b"\x01\x00" + number(1600),  # pages of 64 KiB: 100 MiB
        7: bytes([n + 1]) + b"".join(exports),
        10: bytes([n]) + b"".join(sized(assemble(name)) for name in FUNCTIONS),
    }
    content = b"".join(bytes([section]) + sized(part) for section, part in sections.items())
    return b"\x00asm\x01\x00\x00\x00" + content
