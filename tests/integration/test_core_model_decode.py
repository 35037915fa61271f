"""The core model's decoder on one or more words of each group of A64 instructions."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from tests.support.core_model import build_model, decoded

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the model is built with the machine's compiler")

# Word, as LLVM's assembler encodes it; instruction; unit; registers that it reads; that it writes, with the latency.
INSTRUCTIONS = """
10000041 | adr x1, #8 | alu |  | x1:1
910043e1 | add x1, sp, #16 | alu | sp | x1:1
b1000c41 | adds x1, x2, #3 | alu | x2 | x1:1 nzcv:1
92400c41 | and x1, x2, #0xf | alu | x2 | x1:1
72000c41 | ands w1, w2, #0xf | alu | x2 | x1:1 nzcv:1
d28000e1 | movz x1, #7 | alu |  | x1:1
f2a000e1 | movk x1, #7, lsl #16 | alu | x1 | x1:1
d3431841 | ubfx x1, x2, #3, #4 | alu | x2 | x1:1
b37d0c41 | bfi x1, x2, #3, #4 | alu | x1 x2 | x1:1
93c31441 | extr x1, x2, x3, #5 | alu | x2 x3 | x1:1
8b234841 | add x1, x2, w3, uxtw #2 | alu | x2 x3 | x1:1
cb031041 | sub x1, x2, x3, lsl #4 | alu | x2 x3 | x1:1
eb03005f | cmp x2, x3 | alu | x2 x3 | nzcv:1
8a230041 | bic x1, x2, x3 | alu | x2 x3 | x1:1
9a030041 | adc x1, x2, x3 | alu | nzcv x2 x3 | x1:1
fa431044 | ccmp x2, x3, #4, ne | alu | nzcv x2 x3 | nzcv:1
fa431844 | ccmp x2, #3, #4, ne | alu | nzcv x2 | nzcv:1
9a830041 | csel x1, x2, x3, eq | alu | nzcv x2 x3 | x1:1
dac00041 | rbit x1, x2 | alu | x2 | x1:1
5ac01041 | clz w1, w2 | alu | x2 | x1:1
9ac32041 | lslv x1, x2, x3 | alu | x2 x3 | x1:1
9ac30841 | udiv x1, x2, x3 | divide | x2 x3 | x1:13
9b031041 | madd x1, x2, x3, x4 | multiply | x2 x3 x4 | x1:4
9bc37c41 | umulh x1, x2, x3 | multiply | x2 x3 | x1:5
9b231041 | smaddl x1, w2, w3, x4 | multiply | x2 x3 x4 | x1:3
d53bd041 | mrs x1, tpidr_el0 | memory |  | x1:4
b4000041 | cbz x1, #8 | branch | x1 |
37180041 | tbnz w1, #3, #8 | branch | x1 |
54000040 | b.eq #8 | branch | nzcv |
94000002 | bl #8 | branch |  | x30:1
d63f0020 | blr x1 | branch | x1 | x30:1
d65f03c0 | ret | branch | x30 |
f8637841 | ldr x1, [x2, x3, lsl #3] | memory | x2 x3 | x1:2
f8408c41 | ldr x1, [x2, #8]! | memory | x2 | x1:2 x2:1
f8008441 | str x1, [x2], #8 | memory | x1 x2 | x2:1
b9800041 | ldrsw x1, [x2] | memory | x2 | x1:2
58000041 | ldr x1, #8 | memory |  | x1:2
a8c10861 | ldp x1, x2, [x3], #16 | memory | x3 | x1:2 x2:3 x3:1
a9bf0be1 | stp x1, x2, [sp, #-16]! | memory | sp x1 x2 | sp:1
69400861 | ldpsw x1, x2, [x3] | memory | x3 | x1:2 x2:2
c85f7c41 | ldxr x1, [x2] | memory | x2 | x1:2
c801fc62 | stlxr w1, x2, [x3] | memory | x2 x3 | x1:3
c89ffc41 | stlr x1, [x2] | memory | x1 x2 |
3dc00041 | ldr q1, [x2] | memory | x2 | v1:4
fd000441 | str d1, [x2, #8] | memory | v1 x2 |
ad400861 | ldp q1, q2, [x3] | memory | x3 | v1:4 v2:4
4cc4a061 | ld1 {v1.16b, v2.16b}, [x3], x4 | memory | x3 x4 | v1:4 v2:6 x3:1
4c4008a1 | ld4 {v1.4s, v2.4s, v3.4s, v4.4s}, [x5] | memory | x5 | v1:4 v2:6 v3:8 v4:10
4d408061 | ld1 {v1.s}[2], [x3] | memory | v1 x3 | v1:4
4dffcc61 | ld2r {v1.2d, v2.2d}, [x3], #16 | memory | x3 | v1:4 v2:4 x3:1
4c008861 | st2 {v1.4s, v2.4s}, [x3] | memory | v1 v2 x3 |
4d9f8461 | st1 {v1.d}[1], [x3], #8 | memory | v1 x3 | x3:1
d50b7421 | dc zva, x1 | memory | x1 |
1e204041 | fmov s1, s2 | vector | v2 | v1:2
1e201001 | fmov s1, #2.0 | vector |  | v1:2
9e670041 | fmov d1, x2 | vector | x2 | v1:3
9e660041 | fmov x1, d2 | vector | v2 | x1:2
1e60c041 | fabs d1, d2 | vector | v2 | v1:2
1e21c041 | fsqrt s1, s2 | vector | v2 | v1:17
1e22c041 | fcvt d1, s2 | vector | v2 | v1:4
1e244041 | frintn s1, s2 | vector | v2 | v1:4
1e232841 | fadd s1, s2, s3 | vector | v2 v3 | v1:4
1e631841 | fdiv d1, d2, d3 | vector | v2 v3 | v1:33
1e232040 | fcmp s2, s3 | vector | v2 v3 | nzcv:4
1e231440 | fccmp s2, s3, #0, ne | vector | nzcv v2 v3 | nzcv:4
1e231c41 | fcsel s1, s2, s3, ne | vector | nzcv v2 v3 | v1:2
1f031041 | fmadd s1, s2, s3, s4 | vector | v2 v3 v4 | v1:8
9e220041 | scvtf s1, x2 | vector | x2 | v1:4
1e780041 | fcvtzs w1, d2 | vector | v2 | x1:4
4ea38441 | add v1.4s, v2.4s, v3.4s | vector | v2 v3 | v1:2
4e23cc41 | fmla v1.4s, v2.4s, v3.4s | vector | v1 v2 v3 | v1:8
4fa31041 | fmla v1.4s, v2.4s, v3.s[1] | vector | v1 v2 v3 | v1:8
4fc39041 | fmul v1.2d, v2.2d, v3.d[0] | vector | v2 v3 | v1:4
4e639441 | mla v1.8h, v2.8h, v3.8h | vector | v1 v2 v3 | v1:4
6e23fc41 | fdiv v1.4s, v2.4s, v3.4s | vector | v2 v3 | v1:32
6ea1f841 | fsqrt v1.4s, v2.4s | vector | v2 | v1:30
4e23fc41 | frecps v1.4s, v2.4s, v3.4s | vector | v2 v3 | v1:8
6e631c41 | bsl v1.16b, v2.16b, v3.16b | vector | v1 v2 v3 | v1:2
6e231c41 | eor v1.16b, v2.16b, v3.16b | vector | v2 v3 | v1:2
4ea37c41 | saba v1.4s, v2.4s, v3.4s | vector | v1 v2 v3 | v1:3
0e638041 | smlal v1.4s, v2.4h, v3.4h | vector | v1 v2 v3 | v1:4
0e63c041 | smull v1.4s, v2.4h, v3.4h | vector | v2 v3 | v1:4
4e612841 | xtn2 v1.8h, v2.4s | vector | v1 v2 | v1:3
4ea1b841 | fcvtzs v1.4s, v2.4s | vector | v2 | v1:4
4eb1b841 | addv s1, v2.4s | vector | v2 | v1:3
6e30f841 | fmaxv s1, v2.4s | vector | v2 | v1:8
7e30d841 | faddp s1, v2.2s | vector | v2 | v1:4
4f000461 | movi v1.4s, #3 | vector |  | v1:2
4f001461 | orr v1.4s, #3 | vector | v1 | v1:2
4f03f601 | fmov v1.4s, #1.0 | vector |  | v1:2
4f235441 | shl v1.4s, v2.4s, #3 | vector | v2 | v1:3
4f3d1441 | ssra v1.4s, v2.4s, #3 | vector | v1 v2 | v1:3
6f235441 | sli v1.4s, v2.4s, #3 | vector | v1 v2 | v1:3
0f13a441 | sshll v1.4s, v2.4h, #3 | vector | v2 | v1:3
4e0c0441 | dup v1.4s, v2.s[1] | vector | v2 | v1:2
4e040c41 | dup v1.4s, w2 | vector | x2 | v1:3
4e0c1c41 | ins v1.s[1], w2 | vector | v1 x2 | v1:3
6e0c0441 | ins v1.s[1], v2.s[0] | vector | v1 v2 | v1:2
0e0c3c41 | umov w1, v2.s[1] | vector | v2 | x1:3
4e833841 | zip1 v1.4s, v2.4s, v3.4s | vector | v2 v3 | v1:3
6e032041 | ext v1.16b, v2.16b, v3.16b, #4 | vector | v2 v3 | v1:3
4e031041 | tbx v1.16b, {v2.16b}, v3.16b | vector | v1 v2 v3 | v1:3
1ac34841 | crc32w w1, w2, w3 | multiply | x2 x3 | x1:2
d503201f | nop | alu |  |
d5033bbf | dmb ish | memory |  |
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("line", INSTRUCTIONS.strip().splitlines())
def test_unit_registers_and_latencies(model: ctypes.CDLL, line: str) -> None:
    word, _, unit, reads, writes = (field.strip() for field in line.split("|"))
    operation = decoded(model, int(word, 16))
    assert operation.unit_name == unit
    assert sorted(operation.reads) == sorted(reads.split())
    assert sorted(operation.writes) == sorted(writes.split())
