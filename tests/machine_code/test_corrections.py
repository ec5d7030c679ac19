"""Each fault of the emulator that corrections.py names, shown by an instruction or two: what AMD's documents say comes out with the
correction and does not come out without it. FLASHATTN_TINYGRAD is a checkout of tinygrad; AMDGPU_CLANG
assembles, clang-19 unless set.
"""
import ctypes
import os
import subprocess
import tempfile
import types
import unittest

import numpy as np

import corrections
import loader

END = {"cdna": b"\0\0\x81\xbf", "rdna3": b"\0\0\xb0\xbf", "rdna4": b"\0\0\xb0\xbf"}  # s_endpgm
CPU = {"cdna": "gfx942", "rdna3": "gfx1100", "rdna4": "gfx1201"}


def assemble(arch, text):
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        clang = os.environ.get("AMDGPU_CLANG", "clang-19")
        subprocess.run([clang, "-target", "amdgcn-amd-amdhsa", f"-mcpu={CPU[arch]}", "-x", "assembler", "-c", "-", "-o", file.name],
                       input=text.encode(), check=True)
        with open(file.name, "rb") as elf:
            return dict(loader.hip_kernels.sections(elf.read()))[".text"]


class Machine:
    """A wave in front of some instructions."""

    def __init__(self, emulator, arch, text, target=""):
        code = assemble(arch, text) + END[arch] + bytes(32)
        self.code = ctypes.create_string_buffer(code, len(code))
        self.emulator, self.arch, self.target = emulator, arch, target
        launch = types.SimpleNamespace(threads=emulator.lanes(arch), entry=ctypes.addressof(self.code), rsrc2=0, scratch=0, arch=arch,
                                       user_sgprs=[0])
        self.wave = loader.Wave(emulator, launch, 0, (0, 0), emulator.lds)
        self.v, self.s = corrections.registers(self.wave), self.wave.sgpr

    def run(self):
        self.wave.run(loader.Program(self.emulator, self.arch, self.target))

    def floats(self, first, count):
        return self.v[first:first + count].view(np.float32)


class Uncorrected(loader.Emulator):
    """The emulator as it is."""

    def step(self, pc, arch, _):
        inst = self.emu.decode_inst(ctypes.string_at(pc, 16), arch)
        step = loader.Step(inst.op.name)
        program, runtime = self.emu._get_runner(ctypes.string_at(pc, inst.size() + 4), arch)
        step.function, step.buffers = runtime.fxn, tuple(program.arg.globals)
        return step


def words(*values):
    array = np.array(values, np.uint32)
    return array, array.ctypes.data


def flat_saddr(emulator):
    (here, address), (_, elsewhere) = words(11), words(22)
    machine = Machine(emulator, "cdna", "flat_load_dword v2, v[0:1]\n")
    machine.keep = here, _
    machine.v[0], machine.v[1] = address & loader.MASK32, address >> 32
    base = elsewhere - (address & loader.MASK32)
    machine.s[0], machine.s[1] = base & loader.MASK32, base >> 32 & loader.MASK32
    machine.run()
    return machine.v[2, 5] == 11


def flat_offset(emulator):
    memory = np.zeros(2048, np.uint32)
    memory[1024 + 512], memory[512] = 11, 22  # 2048 bytes above and below the middle
    address = memory.ctypes.data + 4096
    machine = Machine(emulator, "cdna", "flat_load_dword v2, v[0:1] offset:2048\n")
    machine.v[0], machine.v[1] = address & loader.MASK32, address >> 32
    low = address & loader.MASK32
    machine.s[0], machine.s[1] = (address - low) & loader.MASK32, (address - low) >> 32  # what a scalar base must be to change nothing
    machine.run()
    return machine.v[2, 5] == 11


def flat_rdna4(emulator):
    memory, address = words(11)
    machine = Machine(emulator, "rdna4", "flat_load_b32 v2, v[0:1]\n")
    machine.keep = memory
    machine.v[0], machine.v[1] = address & loader.MASK32, address >> 32
    machine.run()
    return machine.v[2, 5] == 11


def unaligned(emulator):
    for arch, store, load in (("cdna", "global_store_dword v[0:1], v3, off", "global_load_dwordx2 v[4:5], v[0:1], off offset:-4"),
                              ("rdna3", "global_store_b32 v[0:1], v3, off", "global_load_b64 v[4:5], v[0:1], off offset:-4"),
                              ("rdna4", "global_store_b32 v[0:1], v3, off", "global_load_b64 v[4:5], v[0:1], off offset:-4")):
        memory, address = words(0, 0, 0, 0)
        machine = Machine(emulator, arch, f"{store}\n{load}\n")
        address += 6
        machine.v[0], machine.v[1], machine.v[3] = address & loader.MASK32, address >> 32, 0x04030201
        machine.run()
        if memory.tolist() != [0, 0x02010000, 0x0403, 0] or machine.v[4:6, 7].tolist() != [0, 0x04030201]:
            return False
    return True


def sixteen_bits(emulator):
    machine = Machine(emulator, "cdna", "v_lshlrev_b16_e32 v134, 1, v7\n")
    machine.v[6], machine.v[7], machine.v[134] = 5, 3, 0
    machine.run()
    return machine.v[6, 0] == 5 and machine.v[134, 0] == 6


ONE_HALF = 0x3C00


def rows_of_32(emulator):
    machine = Machine(emulator, "cdna", "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], 0\n")
    row = np.arange(32, dtype=np.float16)
    machine.v[16, :32], machine.v[18, :32] = row.view(np.uint16), ONE_HALF  # depth 0 alone
    machine.run()
    expected = [[8 * (i // 4) + 4 * (lane // 32) + i % 4 for lane in range(64)] for i in range(16)]
    return (machine.floats(0, 16) == expected).all() and (machine.v[250:] == 0).all()


def agprs(emulator):
    machine = Machine(emulator, "cdna", "v_mfma_f32_16x16x16_f16 v[0:3], a[4:5], v[6:7], 0\n")
    corrections.registers(machine.wave, True)[4, :16] = ONE_HALF
    machine.v[6, :16] = ONE_HALF
    machine.run()
    return (machine.floats(0, 4) == 1).all()


def lds_from_agprs(emulator):
    machine = Machine(emulator, "cdna", "ds_write_b128 v6, a[8:11] offset:16\nds_read_b64 v[12:13], v6 offset:24\n")
    corrections.registers(machine.wave, True)[8:12] = [[11], [22], [33], [44]]
    machine.v[6], machine.v[8:12] = 0, 77
    machine.run()
    return machine.v[12:14, 9].tolist() == [33, 44] and not machine.v[14:].any()


def special(emulator):
    machine = Machine(emulator, "cdna", "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0\n")
    machine.v[4, :16], machine.v[6, :16] = 1, ONE_HALF  # 2^-24
    machine.run()
    return (machine.floats(0, 4) == 2.0 ** -24).all()


def constant_c(emulator):
    machine = Machine(emulator, "rdna3", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 1.0\n")
    machine.v[240:256] = 77
    machine.run()
    return (machine.floats(0, 8) == 1).all() and (machine.v[240:256] == 77).all()


def permlane(emulator):
    machine = Machine(emulator, "rdna3", "v_permlanex16_b32 v1, v0, s0, 0xfedcba98\n")
    machine.v[0], machine.s[0] = np.arange(32), 0x76543210
    machine.run()
    return (machine.v[1] == np.arange(32) ^ 16).all()


def caches(emulator):
    for arch, text in (("rdna3", "buffer_gl0_inv\nbuffer_gl1_inv\n"), ("rdna4", "global_inv scope:SCOPE_DEV\nglobal_wb scope:SCOPE_DEV\n"),
                       ("cdna", "buffer_wbl2 sc1\nbuffer_inv sc1\n")):
        machine = Machine(emulator, arch, text)
        machine.run()
        if not machine.wave.done or machine.v[1:].any():  # nothing was loaded
            return False
    return True


def program_counter(emulator):
    machine = Machine(emulator, "rdna4", "s_getpc_b64 s[4:5]\n")
    machine.run()
    return machine.s[4] | machine.s[5] << 32 == ctypes.addressof(machine.code) + 4


def calls(emulator):
    machine = Machine(emulator, "cdna", "s_swappc_b64 s[4:5], s[6:7]\ns_mov_b32 s8, 1\ns_mov_b32 s9, 1\n")
    code = ctypes.addressof(machine.code)
    machine.s[8] = machine.s[9] = 0
    machine.s[6], machine.s[7] = code + 8 & 0xFFFFFFFF, code + 8 >> 32
    machine.run()
    return machine.s[4] | machine.s[5] << 32 == code + 4 and (machine.s[8], machine.s[9]) == (0, 1)


def shared_base(emulator):
    for arch in CPU:
        machine = Machine(emulator, arch, "s_mov_b64 s[4:5], src_shared_base\n")
        machine.run()
        if machine.s[4] | machine.s[5] << 32 != emulator.lds:
            return False
    return True


def products_of_cdna2(emulator):
    machine = Machine(emulator, "cdna", ".long 0xd3e70000, 0x02020d04\n", "gfx90a")  # v_mfma_f32_16x16x16bf16_1k v[0:3], v[4:5], v[6:7], 0
    machine.v[4, :16], machine.v[6, :16] = 0x3F80, 0x4000  # 1 and 2 of depth 0
    machine.run()
    return (machine.floats(0, 4) == 2).all()


# Of gfx950, which clang 19 does not know.
def transposed_loads(emulator):
    machine = Machine(emulator, "cdna", ".long 0xd9c60010, 0x04000002\n")  # ds_read_b64_tr_b16 v[4:5], v2 offset:16
    memory = (ctypes.c_uint16 * 264).from_address(emulator.lds)
    memory[:] = range(264)
    machine.v[2] = np.arange(64) * 8
    machine.run()
    expected = [[8 + 4 * (lane // 16 * 16 + 4 * i + lane % 16 // 4) + lane % 4 for lane in range(64)] for i in range(4)]
    found = machine.v[4:6].copy()
    return [(found[i // 2] >> 16 * (i % 2) & 0xFFFF).tolist() for i in range(4)] == expected


def loads_to_lds(emulator):
    machine = Machine(emulator, "cdna", "s_mov_b32 m0, s4\n.long 0xddf48000, 0x00060002\n")  # global_load_lds_dwordx4 v2, s[6:7]
    source, address = words(*range(4 * 64))
    machine.keep = source
    memory = (ctypes.c_uint32 * (4 * 65)).from_address(emulator.lds)
    memory[:] = [0] * len(memory)
    machine.s[4], machine.s[6], machine.s[7] = 16, address & loader.MASK32, address >> 32
    lanes = np.arange(64)
    machine.v[2] = 16 * (lanes ^ 5)
    machine.run()
    return list(memory) == [0] * 4 + [4 * (lane ^ 5) + i for lane in lanes for i in range(4)]


def swaps(emulator):
    for instruction, rows in (("0x7e08b505", 32), ("0x7e08b305", 16)):  # v_permlane32_swap_b32 v4, v5; v_permlane16_swap_b32
        machine = Machine(emulator, "cdna", f".long {instruction}\n")
        lane = np.arange(64)
        machine.v[4], machine.v[5] = lane, 100 + lane
        machine.run()
        upper = lane // rows % 2 == 1
        if machine.v[4].tolist() != np.where(upper, 100 + lane - rows, lane).tolist():
            return False
        if machine.v[5].tolist() != np.where(upper, 100 + lane, lane + rows).tolist():
            return False
    return True


def indexed_registers(emulator):
    machine = Machine(emulator, "cdna", "s_set_gpr_idx_on s8, gpr_idx(DST)\nv_mov_b32_e32 v2, v9\ns_set_gpr_idx_off\n")
    machine.s[8], machine.v[5], machine.v[9] = 3, 1, 7
    machine.run()
    return (machine.v[5] == 7).all()


CASES = {"program counter": program_counter, "calls": calls, "shared base": shared_base, "indexed registers": indexed_registers,
         "transposed loads": transposed_loads, "loads to LDS": loads_to_lds, "swaps": swaps,
         "products of CDNA 2": products_of_cdna2, "flat saddr": flat_saddr, "flat offset": flat_offset,
         "flat on RDNA 4": flat_rdna4, "unaligned words": unaligned, "16-bit registers": sixteen_bits,
         "rows of 32 x 32": rows_of_32, "operands in AGPRs": agprs, "LDS from AGPRs": lds_from_agprs,
         "f16 special operands": special, "constant C": constant_c, "permlane literal": permlane, "cache": caches}


class Corrections(unittest.TestCase):
    def test_each_is_needed_and_works(self):
        install = corrections.install
        corrections.install = lambda emu: None
        plain = Uncorrected(os.environ["FLASHATTN_TINYGRAD"])
        corrections.install = install
        wrong = {}
        for name, case in CASES.items():
            try:
                wrong[name] = not case(plain)
            except Exception:  # it knows no such instruction
                wrong[name] = True
        plain.emu._get_runner.cache_clear()
        plain.emu._canonical_runner_cache.clear()
        corrected = loader.Emulator(os.environ["FLASHATTN_TINYGRAD"])
        for name, case in CASES.items():
            with self.subTest(name):
                self.assertTrue(case(corrected))
                self.assertTrue(wrong[name], "the emulator is right by itself: the correction can go")
        self.assertEqual(set(CASES), set(corrections.PROOFS))


if __name__ == "__main__":
    unittest.main()
