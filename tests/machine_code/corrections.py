"""What tinygrad's emulator of AMD's instructions gets wrong, each put right by name. PROOFS says by what a fault is known; the tests in
test_corrections.py show it, and that it is gone.

None changes a result by a tolerance. A correction that takes its facts from AMD's matrix instruction calculator, as this project's own
emulator does, is no independent evidence of them: only "rows of 32 x 32" is of that kind.
"""
import ctypes
import re

import numpy as np

PROOFS = {
    "cache": "buffer_gl0_inv, buffer_inv, buffer_wbl2, global_inv and global_wb are not decoded, or taken for loads: they are skipped",
    "program counter": "s_getpc_b64 is not known: it gives the address of the instruction behind it",
    "calls": "s_swappc_b64 is not known: it does so, too, and goes elsewhere; its way back, s_setpc_b64, with it",
    "shared base": "src_shared_base, the upper half of shared memory's generic addresses, reads as 0",
    "indexed registers": "s_set_gpr_idx_on is not known: in what LLVM makes of it one v_mov_b32 follows, whose register it adds to",
    "transposed loads": "ds_read_b64_tr_b16 of CDNA 4 is not known: it exchanges what 16 lanes have read, as AMD's own simulator does (rocjitsu, of "
                        "ROCm/rocm-systems, whose pull request 10175 gives the lanes)",
    "loads to LDS": "global_load_lds_dwordx4 of CDNA 4 is not known: 16 bytes of lane i go to LDS at m0 + 16 i, as by what the emulator has of "
                    "buffer_load_dwordx4 with a bit for LDS",
    "products of CDNA 2": "the emulator has CDNA 3's codes alone of the products of bf16; whose numbers CDNA 2 would take for 0, it does not",
    "swaps": "of v_permlane32_swap and v_permlane16_swap the emulator makes something else than AMD's manual of CDNA 4 says",
    "flat saddr": "CDNA's FLAT has no scalar base: its bits are reserved, and 0 in what LLVM writes. The emulator adds s[0:1] to the lower "
                  "half of the address",
    "flat offset": "CDNA's FLAT has an unsigned offset of 12 bits, the emulator takes the upper half for negative ones",
    "flat on RDNA 4": "what the emulator has of VFLAT asks for the base of scratch memory, which it does not know: no kernel's flat address "
                      "lies there",
    "unaligned words": "global memory takes words at any address, as ROCm configures it and LLVM expects; the emulator drops its two "
                       "lowest bits",
    "16-bit registers": "v128 to v255 of a 16-bit instruction are upper halves of v0 to v127 on RDNA alone, the emulator does so on CDNA",
    "rows of 32 x 32": "register i of lane l holds row 8 (i / 4) + 4 (l / 32) + i % 4 of an MFMA's 32 x 32 results by AMD's tables, the "
                       "emulator has row 16 (l / 32) + i",
    "operands in AGPRs": "a bit of MFMA's encoding says that A or B is an accumulation register, the emulator reads the vector register",
    "LDS from AGPRs": "a bit of ds_write's encoding says that the data is in accumulation registers, the emulator stores vector registers",
    "f16 special operands": "MFMA of CDNA 3 takes subnormal f16 as they are, the emulator for 0, and infinity and NaN for numbers",
    "constant C": "WMMA's C may be an inline constant, the emulator takes its code for a register's",
    "permlane literal": "a literal among the selectors of v_permlane16 and v_permlanex16 is read as 0",
}
# Not met as such: run() of loader.py has address space for any address of shared memory that a switched-off lane brings, scratch memory for
# each wave, and keeps subnormal numbers, as the kernels' descriptors ask.


def skipped(word, arch):
    """The bytes of an instruction that only controls caches; 0: another."""
    if arch == "rdna3" and word in (0xE0AC0000, 0xE0B00000):
        return 8
    if arch == "rdna4" and word & 0xFFFFFF00 in (0xEE0AC000, 0xEE0B0000, 0xEE13C000):
        return 12
    if arch == "cdna" and word & 0xFFFC0000 in (0xE0A00000, 0xE0A40000):
        return 8
    return 0


def advance(wave, size):
    pc = (wave.sgpr[256] | wave.sgpr[257] << 32) + size
    wave.sgpr[256], wave.sgpr[257] = pc & 0xFFFFFFFF, pc >> 32


def give_program_counter(step, inst, pc):
    """All of s_getpc_b64, and of s_swappc_b64 and s_setpc_b64, which go elsewhere."""
    size, register, source = inst.size(), field(inst, "sdst"), field(inst, "ssrc0")
    step.correction = "program counter" if step.name == "S_GETPC_B64" else "calls"

    def after(wave):
        to = wave.sgpr[source], wave.sgpr[source + 1]
        if step.name != "S_SETPC_B64":
            wave.sgpr[register], wave.sgpr[register + 1] = pc + size & 0xFFFFFFFF, pc + size >> 32
        if step.name == "S_GETPC_B64":
            advance(wave, size)
        else:
            wave.sgpr[256], wave.sgpr[257] = to
    step.after = after


SHARED_BASE = 235


def give_shared_base(step, inst):
    """All of s_mov_b64 from src_shared_base."""
    register = field(inst, "sdst")
    step.correction = "shared base"

    def after(wave):
        wave.sgpr[register], wave.sgpr[register + 1] = 0, wave.buffers[3].value >> 32
        advance(wave, inst.size())
    step.after = after


def move_indexed(step, inst, pc):
    """s_set_gpr_idx_on, v_mov_b32 and s_set_gpr_idx_off together."""
    index, mode = field(inst, "ssrc0"), field(inst, "ssrc1")  # 1: of the source, 8: of the destination
    move, off = (ctypes.c_uint32.from_address(pc + at).value for at in (4, 8))
    source, to = move & 511, move >> 17 & 255
    assert move >> 25 == 0x3F and move >> 9 & 255 == 1 and off == 0xBF9C0000 and mode in (1, 8) and source >= 256, "another use of indexed registers"
    step.correction = "indexed registers"

    def after(wave):
        vgprs, by = registers(wave), wave.sgpr[index] & 255
        active = wave.sgpr[126] | wave.sgpr[127] << 32
        lanes = [lane for lane in range(64) if active >> lane & 1]
        vgprs[to + (by if mode == 8 else 0), lanes] = vgprs[source - 256 + (by if mode == 1 else 0), lanes]
        advance(wave, 12)
    step.after = after


def rename_product(pc):
    """Of v_mfma_f32_32x32x8bf16_1k and 16x16x16bf16_1k, CDNA 3's code in place of CDNA 2's. Was it one?"""
    word = ctypes.c_uint32.from_address(pc)
    code = {0xD3E6: 0xD3E0, 0xD3E7: 0xD3E1}.get(word.value >> 16)
    if code:
        word.value = code << 16 | word.value & 0xFFFF
    return code is not None


TRANSPOSED_LANES = np.array([[lane // 16 * 16 + 4 * i + lane % 16 // 4 for lane in range(64)] for i in range(4)])


def read_transposed(step, inst):
    """All of ds_read_b64_tr_b16: element i of a lane is the (lane % 4)-th of the four that another one reads."""
    address, to, offset = field(inst, "addr"), field(inst, "vdst"), field(inst, "offset0") | field(inst, "offset1") << 8
    step.correction = "transposed loads"

    def after(wave):
        assert wave.sgpr[126] & wave.sgpr[127] == 0xFFFFFFFF, "lanes that are switched off"
        read = np.array([(ctypes.c_uint16 * 4).from_address(wave.buffers[3].value + int(a) + offset) for a in registers(wave)[address]])
        own = read[TRANSPOSED_LANES, np.arange(64) % 4].astype(np.uint32)
        registers(wave, bool(field(inst, "acc")))[to:to + 2] = own[::2] | own[1::2] << 16
        advance(wave, inst.size())
    step.after = after


def load_to_lds(step, inst):
    """All of global_load_lds_dwordx4."""
    register, base = field(inst, "addr"), field(inst, "saddr")
    assert base < 124 and field(inst, "offset") == 0, "another form of a load to LDS"
    step.correction = "loads to LDS"

    def after(wave):
        active, at = wave.sgpr[126] | wave.sgpr[127] << 32, wave.buffers[3].value + (wave.sgpr[124] & 0x3FFFF)
        source, offsets = wave.sgpr[base] | wave.sgpr[base + 1] << 32, registers(wave)[register]
        for lane in range(64):
            if active >> lane & 1:
                ctypes.memmove(at + 16 * lane, source + int(offsets[lane]), 16)
        advance(wave, inst.size())
    step.after = after


def swap_lanes(step, inst):
    """All of v_permlane32_swap and v_permlane16_swap: the upper rows of one register and the lower rows of the other are exchanged."""
    rows, first, second = 32 if "32_SWAP" in step.name else 16, field(inst, "vdst"), field(inst, "src0") - 256
    upper = np.arange(64) // rows % 2 == 1
    step.correction = "swaps"

    def after(wave):
        assert wave.sgpr[126] & wave.sgpr[127] == 0xFFFFFFFF, "lanes that are switched off"
        vgprs = registers(wave)
        vgprs[first, upper], vgprs[second, ~upper] = vgprs[second, ~upper].copy(), vgprs[first, upper].copy()
        advance(wave, inst.size())
    step.after = after


def install(emu):
    """The faults in what the emulator makes of an encoding."""
    cdna, context = emu.irc, emu._Ctx
    optional_field, signed_field = context.optional_field, context.inst_field_signed

    def optional(self, inst, name):
        return None if isinstance(inst, cdna.FLAT) and name == "saddr" else optional_field(self, inst, name)

    def signed(self, field):
        return self.inst_field(field).cast(emu.dtypes.int) if field is cdna.FLAT.offset else signed_field(self, field)

    context.optional_field, context.inst_field_signed = optional, signed

    # The two limits, 128 and 384, from which on a register is another's upper half.
    def whole(handler):
        def compile_whole(inst, ctx):
            bits, constant = inst.canonical_op_bits, emu._c
            if 16 in (bits["s0"], bits["s1"], bits["d"]):
                emu._c = lambda value, *dtype: constant(0x7FFFFFFF if value in (128, 384) else value, *dtype)
            try:
                return handler(inst, ctx)
            finally:
                emu._c = constant
        return compile_whole

    # The address is known already; the line that would compute it goes.
    def without_base(handler):
        def compile_without(inst, ctx):
            described = emu.get_pcode

            def pcode(op):
                lines = described(op).split("\n")
                return "\n".join(line for line in lines if "CalcFlatAddr" not in line).replace("MEM[addr", "MEM[ADDR")
            emu.get_pcode = pcode
            try:
                return handler(inst, ctx)
            finally:
                emu.get_pcode = described
        return compile_without

    emu._INST_HANDLERS[emu.ir4.VFLAT] = without_base(emu._INST_HANDLERS[emu.ir4.VFLAT])
    for kind, handler in list(emu._INST_HANDLERS.items()):
        if kind.__module__ == cdna.__name__ and handler in (emu._compile_vop12, emu._compile_vopc):
            emu._INST_HANDLERS[kind] = whole(handler)


def registers(wave, accumulation=False):
    """numpy's view of a wave's registers: [register][lane]."""
    views = wave.__dict__.setdefault("views", {})
    if accumulation not in views:
        buffer = wave.state.accvgpr_buf if accumulation else wave.state.vgpr_buf
        views[accumulation] = np.frombuffer(buffer.as_memoryview(force_zero_copy=True).cast("I"), np.uint32).reshape(256, wave.lanes)
    return views[accumulation]


def free_registers(count, taken):
    """As many neighbouring registers that the instruction does not name, to stand in for an operand."""
    run = 0
    for register in range(255, -1, -1):
        run = 0 if register in taken else run + 1
        if run == count:
            return register
    raise RuntimeError("no registers are left")


def span(first, count):
    return set(range(first, first + count))


def set_field(pc, low, high, value):
    word = ctypes.c_uint32.from_address(pc + low // 32 * 4)
    mask = (1 << (high - low + 1)) - 1 << low % 32
    word.value = word.value & ~mask | value << low % 32


def prepare(step, inst, pc, arch):
    """Marks what a correction touches, and adds what has to be done before and after an instruction."""
    name, kind = step.name, type(inst)
    if MEMORY.match(name):
        prepare_memory(step, inst, arch)
    if arch == "cdna" and kind.__name__ == "DS" and "WRITE" in name and field(inst, "acc"):
        prepare_lds_store(step, inst, pc)
    elif arch == "cdna" and kind.__name__ == "FLAT":
        step.correction = "flat saddr"
    elif arch == "rdna4" and kind.__name__ == "VFLAT":
        step.correction = "flat on RDNA 4"
    elif name.startswith("V_MFMA"):
        prepare_mfma(step, inst, pc)
    elif "WMMA" in name and field(inst, "src2") < 256:
        prepare_constant(step, inst, pc)
    elif "PERMLANE" in name and "16" in name and 255 in (field(inst, "src1"), field(inst, "src2")):
        literal = ctypes.c_uint32.from_address(pc + 8).value

        def before(wave):
            wave.sgpr[255] = literal
        step.before, step.correction = before, "permlane literal"
    elif arch == "cdna" and kind.__name__.startswith(("VOP1", "VOP2", "VOPC")) and "SDWA" not in kind.__name__:
        bits = inst.canonical_op_bits
        high = field(inst, "vdst") >= 128 or field(inst, "src0") >= 384 or field(inst, "vsrc1") >= 128
        if 16 in (bits["s0"], bits["s1"], bits["d"]) and high:
            step.correction = "16-bit registers"


def field(inst, name):
    """The bits of an encoding's field; 0 where it has none."""
    at = getattr(type(inst), name, None)
    return inst._raw >> at.lo & (1 << (at.hi - at.lo + 1)) - 1 if at is not None else 0


MEMORY = re.compile(r"(GLOBAL|FLAT)_(LOAD|STORE)_(DWORD(X[234])?|B(32|64|96|128))$")


def prepare_memory(step, inst, arch):
    """Where an active lane's address is no multiple of 4, the words are copied here."""
    _, operation, width = MEMORY.match(step.name).group(1, 2, 3)
    count = {"DWORD": 1, "DWORDX2": 2, "DWORDX3": 3, "DWORDX4": 4}.get(width) or int(width[1:]) // 32
    new = arch == "rdna4"
    register, data, target = field(inst, "vaddr" if new else "addr"), field(inst, "vsrc" if new else "data"), field(inst, "vdst")
    at = getattr(type(inst), "ioffset" if new else "offset")
    offset, bits = field(inst, "ioffset" if new else "offset"), at.hi - at.lo + 1
    cdna_flat = arch == "cdna" and step.name.startswith("FLAT")
    if offset >> bits - 1 and not cdna_flat:
        offset -= 1 << bits
    base = 127 if cdna_flat else field(inst, "saddr")
    accumulation = bool(field(inst, "acc")) if arch == "cdna" else False

    def before(wave):
        vgprs = registers(wave)
        if base < 124:
            addresses = vgprs[register].astype(np.uint64) + np.uint64(wave.sgpr[base] | wave.sgpr[base + 1] << 32)
        else:
            addresses = vgprs[register].astype(np.uint64) | vgprs[register + 1].astype(np.uint64) << np.uint64(32)
        addresses = addresses + np.uint64(offset & (1 << 64) - 1)
        active = wave.sgpr[126] | (wave.sgpr[127] << 32 if wave.lanes == 64 else 0)
        lanes = [lane for lane in range(wave.lanes) if active >> lane & 1]
        if not (addresses[lanes] & np.uint64(3)).any():
            return False
        values = registers(wave, accumulation)
        for lane in lanes:
            words = (ctypes.c_uint32 * count).from_address(int(addresses[lane]))
            if operation == "STORE":
                words[:] = values[data:data + count, lane].tolist()
            else:
                values[target:target + count, lane] = words[:]
        UNALIGNED[step.name] = UNALIGNED.get(step.name, 0) + 1
        advance(wave, inst.size())
        return True

    step.before = before


def prepare_lds_store(step, inst, pc):
    """Vector registers that nobody uses stand in for the accumulation registers."""
    bits = re.match(r"DS_WRITE_B(\d+)$", step.name)
    assert bits, step.name
    count, register = max(int(bits[1]) // 32, 1), field(inst, "data0")
    to = free_registers(count, span(field(inst, "addr"), 1) | span(register, count))
    set_field(pc, 40, 47, to)
    step.correction = "LDS from AGPRs"
    saved = []

    def before(wave):
        vgprs = registers(wave)
        saved[:] = [vgprs[to:to + count].copy()]
        vgprs[to:to + count] = registers(wave, True)[register:register + count]

    def after(wave):
        registers(wave)[to:to + count] = saved[0]
    step.before, step.after = before, after


UNALIGNED = {}  # how often
ROWS_32 = np.array([8 * (i // 4) + 4 * half + i % 4 for half in range(2) for i in range(16)])  # where the emulator has row 16 half + i


def prepare_mfma(step, inst, pc):
    """Operands that need it are brought into registers that nobody uses, and the encoding names those."""
    size = 32 if "32X32" in step.name else 16
    depth = int(step.name.split("X")[2].split("_")[0])
    half, wide = step.name.endswith("_F16"), step.name.endswith("_F32")
    words = size * depth // 64 // (1 if wide else 2)
    accumulation = field(inst, "acc")
    a, b, c, d = (field(inst, f) for f in ("src0", "src1", "src2", "vdst"))
    assert a >= 256 and b >= 256 and (half or wide or step.name.endswith("BF16")), step.name
    sources = [(a - 256, bool(accumulation & 1), size == 32), (b - 256, bool(accumulation & 2), False)]
    taken = span(a - 256, words) | span(b - 256, words)
    if not field(inst, "acc_cd"):
        taken |= span(d, size * size // 64) | (span(c - 256, size * size // 64) if c >= 256 else set())
    moves = []
    for (register, from_accumulation, by_rows), (low, high) in zip(sources, ((32, 40), (41, 49))):
        if from_accumulation or by_rows:
            to = free_registers(words, taken)
            taken |= span(to, words)
            set_field(pc, low, high, 256 + to)
            moves.append((register, from_accumulation, by_rows, to))
    if accumulation:
        step.correction = "operands in AGPRs"
    if size == 32:
        step.correction = "rows of 32 x 32"
    lanes = np.concatenate([ROWS_32, ROWS_32 + 32])
    saved = []

    def before(wave):
        vgprs = registers(wave)
        saved[:] = [vgprs[to:to + words].copy() for _, _, _, to in moves]
        for register, from_accumulation, by_rows, to in moves:
            operand = registers(wave, from_accumulation)[register:register + words]
            vgprs[to:to + words] = operand[:, lanes] if by_rows else operand

    def after(wave):
        vgprs = registers(wave)
        for (_, _, _, to), old in zip(moves, saved):
            vgprs[to:to + words] = old
        if special:
            finish_special(wave)

    # Of f16 alone: what the emulator cannot read is multiplied here, from what the instruction found.
    special = []

    def is_special(operand):
        halves = operand.copy().view(np.uint16)
        exponent = halves >> 10 & 31
        return bool((((exponent == 0) & (halves & 1023 != 0)) | (exponent == 31)).any())

    def before_half(wave):
        operands = [registers(wave, acc)[r:r + words].copy() for r, acc, _ in sources]
        special.clear()
        if any(is_special(o) for o in operands):
            count = size * size // 64
            if c >= 256:
                sum_of = registers(wave, bool(field(inst, "acc_cd")))[c - 256:c - 256 + count].copy()
            else:
                sum_of = np.full((count, 64), wave.sgpr[c], np.uint32)
            special.extend([operands, sum_of])
        before(wave)

    def finish_special(wave):
        operands, sum_of = special
        of_group, groups = size, 64 // size
        matrices = []
        for operand in operands:  # [word][lane] of pairs, to [row][depth]
            pairs = operand.T.copy().view(np.float16).astype(np.float32)  # [lane][element]
            matrices.append(pairs.reshape(groups, of_group, -1).transpose(1, 0, 2).reshape(of_group, depth))
        count = sum_of.shape[0]
        result = sum_of.view(np.float32).copy()
        for i in range(count):
            for group in range(groups):
                row = 256 // size * (i // 4) + 4 * group + i % 4
                at = slice(group * of_group, (group + 1) * of_group)
                for k in range(depth):
                    with np.errstate(all="ignore"):
                        result[i, at] += matrices[0][row, k] * matrices[1][:, k]
        registers(wave, bool(field(inst, "acc_cd")))[d:d + count] = result.view(np.uint32)
        SPECIAL[step.name] = SPECIAL.get(step.name, 0) + 1

    if half:
        step.before, step.after = before_half, after
    elif moves:
        step.before, step.after = before, after


SPECIAL = {}  # how often the emulator's own product was replaced


def prepare_constant(step, inst, pc):
    constant, count = field(inst, "src2"), 8
    operands = 8 if "rdna3" in type(inst).__module__ else 4
    taken = span(field(inst, "src0") - 256, operands) | span(field(inst, "src1") - 256, operands) | span(field(inst, "vdst"), count)
    to = free_registers(count, taken)
    set_field(pc, 50, 58, 256 + to)
    step.correction = "constant C"
    saved = []

    def before(wave):
        vgprs = registers(wave)
        saved[:] = [vgprs[to:to + count].copy()]
        vgprs[to:to + count] = wave.sgpr[constant]

    def after(wave):
        registers(wave)[to:to + count] = saved[0]
    step.before, step.after = before, after
