"""Runs kernels of an AMD code object on tinygrad's emulator of AMD's instructions: `launch`, which launcher.cc calls in place of a GPU.

The emulator (test/mockgpu/amd in a checkout of tinygrad) decodes and executes single instructions. All else is here: reading the code
object, the state in which a wave begins, the waves of a block and their barriers, each wave's scratch memory; and what the emulator is
known to get wrong is put right in corrections.py.
"""
import collections
import ctypes
import importlib.machinery
import importlib.util
import itertools
import mmap
import os
import struct
import sys

import corrections

MASK32 = 0xFFFFFFFF
ARCHITECTURES = (("gfx90a", "cdna"), ("gfx94", "cdna"), ("gfx95", "cdna"), ("gfx11", "rdna3"), ("gfx12", "rdna4"))
LDS_SPAN = 1 << 32  # as far as an address reaches: lanes that are switched off bring anything
UNWRITTEN = b"\xff"  # NaNs, in every type

_tool = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "hip_kernels")
_spec = importlib.util.spec_from_loader("hip_kernels", importlib.machinery.SourceFileLoader("hip_kernels", _tool))
hip_kernels = importlib.util.module_from_spec(_spec)
sys.dont_write_bytecode = True
_spec.loader.exec_module(hip_kernels)


def address_of(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class CodeObject:
    """An ELF file as the runtime would load it: segments at their places, relocated."""

    def __init__(self, address):
        head = ctypes.string_at(address, 64)
        assert head[:4] == b"\x7fELF", "no ELF file"
        table, entry, count = struct.unpack_from("<Q", head, 40)[0], *struct.unpack_from("<HH", head, 58)
        elf = ctypes.string_at(address, table + entry * count)
        self.kernels = {k[".name"]: k for k in hip_kernels.metadata(elf)["amdhsa.kernels"]}
        segments = [struct.unpack_from("<IIQQQQQQ", elf, struct.unpack_from("<Q", elf, 32)[0] + 56 * n)
                    for n in range(struct.unpack_from("<H", elf, 56)[0])]
        loaded = [s for s in segments if s[0] == 1]
        self.memory = mmap.mmap(-1, max(s[3] + s[6] for s in loaded) + 4096)  # instructions are fetched ahead of the last
        for _, _, offset, place, _, in_file, _, _ in loaded:
            self.memory[place:place + in_file] = elf[offset:offset + in_file]
        self.base = address_of(self.memory)
        sections = dict(hip_kernels.sections(elf))
        names, self.symbols = sections[".dynstr"], {}
        for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", sections[".dynsym"]):
            self.symbols[names[name:names.index(0, name)].decode()] = value
        for place, info, addend in struct.iter_unpack("<QQq", sections.get(".rela.dyn", b"")):
            assert info & MASK32 == 13, f"relocation {info & MASK32}: expected R_AMDGPU_RELATIVE64"
            struct.pack_into("<Q", self.memory, place, self.base + addend)

    def descriptor(self, kernel):
        return self.memory[self.symbols[kernel + ".kd"]:][:64]


class Launch:
    """One launch: what all its waves begin with."""

    def __init__(self, code, target, kernel, grid, threads, shared, params):
        descriptor, meta = code.descriptor(kernel), code.kernels[kernel]
        group, self.scratch, size = struct.unpack_from("<III", descriptor, 0)
        self.entry = code.base + code.symbols[kernel + ".kd"] + struct.unpack_from("<q", descriptor, 16)[0]
        rsrc1, self.rsrc2 = struct.unpack_from("<II", descriptor, 48)
        properties, preload = struct.unpack_from("<HH", descriptor, 56)
        assert preload == 0, "kernel arguments in registers"
        assert rsrc1 >> 16 & 3 == 3, "subnormal numbers flushed"
        self.arch = next(arch for prefix, arch in ARCHITECTURES if target.startswith(prefix))
        self.grid, self.threads, self.lds_bytes = grid, threads, group + shared
        self.kernarg = ctypes.create_string_buffer(size)
        for argument in meta[".args"]:
            if not argument[".value_kind"].startswith("hidden"):
                source = ctypes.c_uint64.from_address(params + 8 * meta[".args"].index(argument)).value
                ctypes.memmove(ctypes.addressof(self.kernarg) + argument[".offset"], source, argument[".size"])
        # hsa_kernel_dispatch_packet_t
        self.packet = ctypes.create_string_buffer(struct.pack(
            "<HHHHHHIIIIIQQQQ", 0, 1, threads, 1, 1, 0, grid[0] * threads, grid[1], 1, self.scratch, self.lds_bytes,
            code.base + code.symbols[kernel + ".kd"], ctypes.addressof(self.kernarg), 0, 0), 64)
        self.user_sgprs = []
        values = {1: ctypes.addressof(self.packet), 3: ctypes.addressof(self.kernarg)}
        if target.startswith("gfx90a"):  # where scratch memory lies, which its kernels ask for and do not touch
            values.update({0: 0, 5: 0})
        for bit, registers in enumerate((4, 2, 2, 2, 2, 2, 1)):  # what a kernel may ask for, in this order
            if properties >> bit & 1:
                assert bit in values, f"user registers by property {bit}"
                self.user_sgprs += [values[bit] & MASK32, values[bit] >> 32, 0, 0][:registers]
        expected = self.rsrc2 >> 1 & 31
        assert len(self.user_sgprs) <= expected, "more user registers than the descriptor says"
        self.user_sgprs += [0] * (expected - len(self.user_sgprs))


class Wave:
    def __init__(self, emulator, launch, first, block, lds):
        n = launch.threads
        lanes = emulator.lanes(launch.arch)
        self.state = emulator.emu._init_wave(launch.entry, first, n, n, 1, 1, 0, launch.rsrc2, launch.scratch, launch.arch, block[0],
                                             block[1], 0, launch.user_sgprs, lanes)
        self.lanes = lanes
        self.sgpr = self.state._sgpr_mv
        self.scratch = (ctypes.c_char * max(launch.scratch * lanes, 1))()
        ctypes.memset(self.scratch, UNWRITTEN[0], len(self.scratch))
        state = self.state
        self.buffers = [ctypes.c_uint64(a) for a in (state.sgpr_buf._buf.va_addr, state.vgpr_buf._buf.va_addr, 0, lds,
                                                     ctypes.addressof(self.scratch), state.accvgpr_buf._buf.va_addr)]
        self.arguments = {}
        self.done = False

    def run(self, program):
        """Until the next barrier, or the end."""
        sgpr, arguments, buffers = self.sgpr, self.arguments, self.buffers
        while True:
            pc = sgpr[256] | sgpr[257] << 32
            if pc == 0xFFFFFFFFFFFFFFFF:
                self.done = True
                return
            step = program.get(pc) or program.compile(pc)
            chosen = arguments.get(step.buffers)
            if chosen is None:
                chosen = arguments[step.buffers] = [buffers[b] for b in step.buffers]
            if not (step.before and step.before(self)) and step.function:
                step.function(*chosen)
            if step.after:
                step.after(self)
            step.count += 1
            if step.barrier:
                return


class Step:
    """An instruction: what executes it, and what is corrected before, which may be all of it, and after."""
    __slots__ = ("function", "buffers", "barrier", "before", "after", "count", "name", "correction")

    def __init__(self, name):
        self.name, self.function, self.buffers, self.barrier = name, None, (), False
        self.before = self.after = self.correction = None
        self.count = 0


class Program(dict):
    """Address to Step, of one code object."""

    def __init__(self, emulator, arch, target=""):
        super().__init__()
        self.emulator, self.arch, self.target = emulator, arch, target

    def compile(self, pc):
        step = self[pc] = self.emulator.step(pc, self.arch, self.target)
        return step


class Emulator:
    def __init__(self, checkout):
        os.environ.setdefault("CC", "clang-19")
        sys.path.insert(0, checkout)
        from test.mockgpu.amd import emu
        self.emu = emu
        corrections.install(emu)
        # At a multiple of its span, so that the upper half of a generic address tells that it lies here.
        libc = ctypes.CDLL(None)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)
        no_reserve, anonymous = 0x4000, 0x22
        at = libc.mmap(None, 2 * LDS_SPAN + 4096, 3, anonymous | no_reserve, -1, 0)
        assert at not in (None, ctypes.c_void_p(-1).value), "no address space for shared memory"
        self.lds = (at + LDS_SPAN - 1) // LDS_SPAN * LDS_SPAN
        self.codes, self.programs = {}, {}
        self.launches = collections.Counter()

    def lanes(self, arch):
        return 64 if arch == "cdna" else 32

    def step(self, pc, arch, target):
        renamed = target.startswith("gfx90a") and corrections.rename_product(pc)
        word = ctypes.c_uint32.from_address(pc).value
        size = corrections.skipped(word, arch)
        if size:
            step = Step("cache control")
            step.correction = "cache"
            step.after = lambda wave: corrections.advance(wave, size)
            return step
        inst = self.emu.decode_inst(ctypes.string_at(pc, 16), arch)
        step = Step(inst.op.name if hasattr(inst, "op") else type(inst).__name__)
        if step.name in ("S_GETPC_B64", "S_SWAPPC_B64", "S_SETPC_B64"):
            corrections.give_program_counter(step, inst, pc)
            return step
        if step.name == "S_MOV_B64" and corrections.field(inst, "ssrc0") == corrections.SHARED_BASE:
            corrections.give_shared_base(step, inst)
            return step
        if step.name == "S_SET_GPR_IDX_ON":
            corrections.move_indexed(step, inst, pc)
            return step
        if step.name == "DS_READ_B64_TR_B16":
            corrections.read_transposed(step, inst)
            return step
        if step.name == "GLOBAL_LOAD_LDS_DWORDX4":
            corrections.load_to_lds(step, inst)
            return step
        if step.name.startswith(("V_PERMLANE32_SWAP", "V_PERMLANE16_SWAP")):
            corrections.swap_lanes(step, inst)
            return step
        corrections.prepare(step, inst, pc, arch)
        if renamed:
            step.correction = "products of CDNA 2"
        try:
            program, runtime = self.emu._get_runner(ctypes.string_at(pc, inst.size() + 4), arch)
        except Exception as reason:
            raise RuntimeError(f"the emulator does not know {inst!r}: {reason}") from reason
        step.function, step.buffers = runtime.fxn, tuple(program.arg.globals)
        step.barrier = getattr(inst, "op", None) in self.emu._BARRIER_OPS | self.emu._BARRIER_SOP1_OPS
        return step

    def run(self, address, target, kernel, grid, threads, shared, params):
        code = self.codes.get(address)
        if code is None:
            code = self.codes[address] = CodeObject(address)
        launch = Launch(code, target, kernel, grid, threads, shared, params)
        program = self.programs.setdefault((address, launch.arch), Program(self, launch.arch, target))
        lanes = self.lanes(launch.arch)
        for block in itertools.product(range(grid[0]), range(grid[1])):
            ctypes.memset(self.lds, UNWRITTEN[0], launch.lds_bytes)
            waves = [Wave(self, launch, first, block, self.lds) for first in range(0, threads, lanes)]
            while not all(wave.done for wave in waves):
                for wave in waves:
                    if not wave.done:
                        wave.run(program)
        self.launches[kernel, threads, launch.lds_bytes] += 1
        self.report()

    def report(self):
        """Kernels and instructions that have run, with those that a correction touched: written anew after each launch, so that it outlives
        whatever ends the process."""
        if name := os.environ.get("FLASHATTN_EMULATOR_REPORT"):
            with open(name, "w", encoding="utf-8") as file:
                self.write(file)

    def write(self, file):
        counts, corrected = collections.Counter(), collections.Counter()
        for program in self.programs.values():
            for step in program.values():
                counts[step.name] += step.count
                if step.correction:
                    corrected[step.correction] += step.count
        for (kernel, threads, shared), n in sorted(self.launches.items()):
            file.write(f"launched {n} {threads} threads {shared} bytes {hip_kernels.plain_name(kernel)} {kernel}\n")
        file.write(f"instructions {sum(counts.values())} of {len(counts)} kinds\n")
        for name, n in sorted(corrected.items()):
            file.write(f"corrected {n} {name}\n")
        for fault, times in (("f16 special operands", corrections.SPECIAL), ("unaligned words", corrections.UNALIGNED)):
            for name, n in sorted(times.items()):
                file.write(f"corrected {n} {fault} of {name}\n")
        for name, n in sorted(counts.items()):
            file.write(f"executed {n} {name}\n")


_emulator = None


def launch(*arguments):
    global _emulator
    if _emulator is None:
        _emulator = Emulator(os.environ["FLASHATTN_TINYGRAD"])
    _emulator.run(*arguments)
