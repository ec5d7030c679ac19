#!/usr/bin/env python3
"""The tables of GPU kernels: registers and spills as ptxas reports them, tiles and shared memory as the backend lists
them, and hashes of each translation unit.

kernel_table.py --write TABLE NVCC VERSION LIST REPORT…   writes TABLE, docs/generated/kernels.md
kernel_table.py --check TABLE NVCC VERSION LIST REPORT…   fails if TABLE differs from this build, or if a kernel spills

NVCC and VERSION: the compiler. LIST: the program tests/budgets/kernel_list, or - to compare registers and hashes alone. REPORT:
OBJECT.ptxas, which tools/keep_ptxas_report kept with other files of its name. A build for some of TABLE's architectures, or with some
of its units, is compared in what it has. Another compiler than TABLE's cannot tell whether it is current: the check is skipped (77).

A build that assembles its kernels reports everything. A quick build (FA_CUDA_PTX) reports only which kernels there are. TABLE's
rows then hold for each unit that has the same source, comments and spaces apart. To confirm that, the check compiles and
assembles SAMPLES as for a release. --write does so for each unit with another source, and keeps its rows if the PTX is the same.
"""
import difflib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77
ENTRY = re.compile(r"Compiling entry function '(.*)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STATIC_SHARED = re.compile(r"(\d+) bytes smem")
# Waits that ptxas inserts between asynchronous matrix multiplications: each costs a kernel its overlap.
SERIALISED = re.compile(r"\(C751[0-6]\)")
HOPPER = re.compile(
    r"forward_sm90<(?:Descaled<)?(\w+)>?, (\d+), (\d+), (\d+), (\d+), "
    r"\(MaskKind\)\d, \w+, \(ScoreMod\)\d, (\d+), (\d+), \(PvProduct\)(\d)>"
)

# Names of what is local to a file hold hashes of its path and the compiler's process number: mangled, after their length.
LOCAL = re.compile(r"(\d+)_(GLOBAL__N_|INTERNAL)_(?=[0-9a-f]{8}_)")
ENTRY_OF_PTX = re.compile(r"\.entry (\w+)\(")
LITERAL_OR_SPACE = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])')|//[^\n]*|/\*.*?\*/|[\s\\]+""", re.S)
DEFINES = re.compile(r"-D|-O|-std|-fmad|--expt|-Xptxas")  # options that decide what a kernel is
QUICK = ["--Ofast-compile", "max"]
# Units of the portable and of Hopper's kernels that are quickly assembled.
SAMPLES = ("mma_8bit_F16", "fwd_sm90_F16_64_1")
UNITS = "## Translation units"

Listed = namedtuple("Listed", "rows columns keys threads resident shared")
HEAD = """# Kernels of the CUDA backend

Made by `tools/kernel_table.py` with nvcc {compiler}; a test compares. Shared memory is what a block takes at the widest head dimension
of its tile, in bytes. A spill is a register's value that had to go to memory, in bytes written.
"""
UNITS_HEAD = f"""
{UNITS}

Hashes of each unit's source, without comments and spaces, and of its PTX. If one of the two has not changed,
the registers above have not changed either. Continuous integration therefore assembles few units.

"""


class Kernel:
    def __init__(self, registers=0, spilled=0, shared=0):
        self.registers, self.stored, self.loaded, self.shared = registers, spilled, 0, shared


def output_of(*command, text=None):
    return subprocess.run(command, check=True, capture_output=True, text=True, input=text).stdout


def short(name):
    """void fa::gpu::forward_simt<4, 16>(fa::gpu::SimtForwardParams) -> forward_simt<4, 16>"""
    name = re.sub(r"^void |\([\w:]*\)$|fa::(gpu::)?|\(anonymous namespace\)::|_INTERNAL_\w+::", "", name)
    return name.replace("> >", ">>").replace("> >", ">>")


def read_report(name, text, kernels):
    """Adds to {kernel: {architecture: Kernel}}, and returns faults. What a kernel's functions spill is the kernel's."""
    faults, kernel = [], None
    for line in output_of("c++filt", text=text).splitlines():
        entry = ENTRY.search(line)
        if entry:
            kernel = kernels[short(entry.group(1))][entry.group(2)] = Kernel()
        spill, used, shared = SPILL.search(line), USED.search(line), STATIC_SHARED.search(line)
        if spill:
            kernel.stored += int(spill.group(1))
            kernel.loaded += int(spill.group(2))
        if used:
            kernel.registers = int(used.group(1))
            kernel.shared = int(shared.group(1)) if shared else 0
        if SERIALISED.search(line):
            faults.append(f"{name}: {line}")
    return faults


class Unit:
    """A translation unit, as it was built: its command, its PTX and what ptxas said."""

    def __init__(self, report):
        self.object = Path(report).with_suffix("")
        self.name = report.partition(".dir/")[2].removeprefix("./").removesuffix(".cu.o.ptxas")
        self.report = Path(report).read_text()
        self.command = self.beside(".command").read_text().splitlines()
        self.folder = Path(self.beside(".folder").read_text().strip())
        self.quick = all(word in self.command for word in QUICK)
        self.ptx = {path.suffixes[-2][1:]: path.read_text() for path in self.object.parent.glob(self.object.name + ".*.ptx")}

    def beside(self, suffix):
        return self.object.with_name(self.object.name + suffix)

    def kernels(self):
        entries = sorted({name for ptx in self.ptx.values() for name in ENTRY_OF_PTX.findall(ptx)})
        return [short(line) for line in output_of("c++filt", text="\n".join(entries)).splitlines()]

    def source_hash(self):
        """Of the project's own files that the unit reads, and of the options."""
        read = (self.folder / path for path in self.beside(".includes").read_text().partition(":")[2].replace("\\\n", " ").split())
        own = [path for path in read if (path.is_relative_to(ROOT) or path.is_relative_to(self.folder)) and "nvcc" not in path.parts]
        texts = [LITERAL_OR_SPACE.sub(lambda m: m[1] or "", path.read_text()) for path in own]
        return hash_of_text("\n".join(texts + sorted({word for word in self.command if DEFINES.match(word)})))

    def compiled(self, nvcc, architectures, assemble):
        """As the unit is compiled for a release: its PTX by architecture, and, if asked for, what ptxas says."""
        with tempfile.TemporaryDirectory() as folder:
            command = [word for word in self.command if word not in QUICK and not word.startswith("--generate-code")]
            virtual = [architecture.replace("sm", "compute") for architecture in sorted(architectures)]
            command += [f"--generate-code=arch={name},code={name}" for name in virtual]
            command[command.index("-o") + 1] = f"{folder}/unit.o"
            command[command.index("-MF") + 1] = f"{folder}/unit.d"
            subprocess.run([*command, "--keep", "--keep-dir", folder], check=True, capture_output=True, cwd=self.folder)
            ptx, report = {}, ""
            for path in Path(folder).glob("*.ptx"):
                text = path.read_text()
                architecture = re.search(r"^\.target (\w+)", text, re.M)[1]
                ptx[architecture] = text
                if assemble(architecture, text):
                    ptxas = [Path(nvcc).parent / "ptxas", "--warning-as-error", "-v", "-m64", "--fmad", "false"]
                    ptxas += ["-arch", architecture, path, "-o", f"{folder}/unit.cubin"]
                    report += subprocess.run(ptxas, check=True, capture_output=True, text=True).stderr
            return ptx, report


def without_local_names(ptx):
    parts, end = [], 0
    for found in LOCAL.finditer(ptx):
        parts += [ptx[end:found.start()], found.group(2)]
        end = found.end(1) + int(found.group(1))
    return "".join(parts) + ptx[end:]


def hash_of_text(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_of_ptx(ptx):
    return hash_of_text(without_local_names("\n".join(line for line in ptx.splitlines() if not line.startswith("//"))))


def read_list(program):
    """{kernel: Listed}, named by the program's own symbols."""
    names = {}
    for line in output_of("nm", "-C", program).splitlines():
        address, _, name = line.partition(" t ")
        if "forward_" in name:
            names[int(address, 16)] = short(name)
    rows = (line.split() for line in output_of(program).splitlines())
    return {names[int(row[0], 16)]: Listed(*map(int, row[1:])) for row in rows}


def hopper_kernels(names):
    """{kernel: Listed} of the Hopper kernels, which the program does not have: their template arguments say all, and the order. Shared:
    matrices alone."""
    listed = {}
    for name in sorted(names, key=lambda n: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", n)]):
        found = HOPPER.fullmatch(name)
        if found:
            dims, columns, keys, groups, key_slots, query_slots, pv = map(int, found.groups()[1:])
            eight_bit = found.group(1) == "E4m3"  # v then lies there twice, in 8 bits and widened
            of_q, raw_v = (-(-width * (1 if eight_bit else 2) // 128) * 128 for width in (dims, columns))
            of_v = -(-columns // 64) * 128 + (raw_v if eight_bit else 0)
            tiles = 2 if groups == 4 and "(MaskKind)3" in name else 1  # of lists, computed at once
            shared = query_slots * 64 * groups * of_q + tiles * key_slots * keys * (of_q + of_v)
            if pv:  # v as it comes, transposed with columns of ones, and averages or sums of o but for short calls
                narrow, promotes = columns <= 128, pv != 3
                transposed = -(-(columns + 8 * narrow) * keys // 1024) * 1024 if keys < 128 else (columns + 8 * narrow) * 128
                shared = query_slots * 64 * groups * of_q + key_slots * (keys * of_q + transposed)
                shared += (1 if promotes and not narrow else key_slots) * keys * raw_v
                shared += promotes * (64 * groups * columns * (4 if groups == 4 else 2) + (groups * 1024 if groups >= 3 else 0))
            listed[name] = Listed(64 * groups // tiles, columns, keys, 128 * (groups + 1), 1, shared)
    return listed


def order(kernel, listed):
    """Listed ones as in the list, then the rest by name."""
    return list(listed).index(kernel) if kernel in listed else len(listed), kernel


def architectures_of(kernels):
    return sorted({a for by_architecture in kernels.values() for a in by_architecture})


def table(compiler, kernels, listed, hashes):
    architectures = architectures_of(kernels)
    heads = ["kernel", "rows × columns, keys", "threads", "shared"]
    heads += [f"{a}: {what}" for a in architectures for what in ("registers", "spilled")]
    lines = [HEAD.format(compiler=compiler), "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name in sorted(kernels, key=lambda k: order(k, listed)):
        one, on = listed.get(name), kernels[name]
        shared = max(k.shared for k in on.values()) + (one.shared if one else 0)
        cells = [f"`{name}`", f"{one.rows} × {one.columns}, {one.keys}" if one else "–", str(one.threads) if one else "–", str(shared)]
        for a in architectures:
            cells += [str(on[a].registers), str(on[a].stored)] if a in on else ["–", "–"]
        lines.append("| " + " | ".join(cells) + " |")
    of = ["source", *architectures]
    lines += [UNITS_HEAD + "| unit | " + " | ".join(of) + " |", "|---" * (len(of) + 1) + "|"]
    lines += [f"| `{unit}` | " + " | ".join(by.get(a, "–") for a in of) + " |" for unit, by in sorted(hashes.items())]
    return "\n".join(lines) + "\n"


def cells_of(text):
    """{(name of a kernel or a unit, head of its column): cell}"""
    cells, heads = {}, []
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else None
        if row and row[0] in ("kernel", "unit"):
            heads = row
        elif row:
            cells.update({(row[0].strip("`"), head): cell for head, cell in zip(heads[1:], row[1:]) if cell != "–"})
    return cells


def spill_faults(kernels):
    for name, on in sorted(kernels.items()):
        spilled = {a: max(k.stored, k.loaded) for a, k in on.items() if k.stored or k.loaded}
        if spilled:
            yield f"{name} spills: {', '.join(f'{bytes} bytes on {a}' for a, bytes in sorted(spilled.items()))}"


def read_units(units, known, nvcc, write):
    """({kernel: {architecture: Kernel}}, {unit: {"source" or an architecture: hash}}, faults). A Kernel of the table has no shared
    memory (None): the table has the sum of what is static and what is not."""
    kernels, hashes, faults = defaultdict(dict), {}, []

    def read(unit):
        of_table = {head: cell for (name, head), cell in known.items() if name == unit.name}
        hashes[unit.name] = {"source": unit.source_hash()}
        if not unit.quick:
            hashes[unit.name].update({a: hash_of_ptx(ptx) for a, ptx in unit.ptx.items()})
            return faults.extend(read_report(unit.name, unit.report, kernels))
        hashes[unit.name] = of_table | hashes[unit.name]
        sample = not write and unit.name in SAMPLES
        if sample or (write and hashes[unit.name] != of_table):
            architectures = set(unit.ptx) if sample else set(unit.ptx) | of_table.keys() - {"source"}
            ptx, report = unit.compiled(nvcc, architectures, lambda a, text: sample or hash_of_ptx(text) != of_table.get(a))
            hashes[unit.name].update({a: hash_of_ptx(text) for a, text in ptx.items()})
            faults.extend(read_report(unit.name, report, kernels))
        for name in unit.kernels():
            for architecture in hashes[unit.name].keys() - {"source"} - kernels[name].keys():
                if (name, f"{architecture}: registers") in known:
                    registers, spilled = (int(known[name, f"{architecture}: {what}"]) for what in ("registers", "spilled"))
                    kernels[name][architecture] = Kernel(registers, spilled, None)

    with ThreadPoolExecutor(os.cpu_count() if write else 1) as pool:
        list(pool.map(read, units))
    return kernels, hashes, faults


def main(arguments):
    mode, path, nvcc, compiler, program, *reports = arguments
    text = Path(path).read_text() if Path(path).exists() else ""
    same_compiler = f"nvcc {compiler};" in text
    known = cells_of(text) if same_compiler else {}
    kernels, hashes, faults = read_units([Unit(report) for report in reports], known, nvcc, mode == "--write")
    listed = {} if program == "-" else read_list(program)
    listed.update(hopper_kernels(kernels))
    for name, on in kernels.items():
        for kernel in on.values():
            if kernel.shared is None:
                kernel.shared = int(known[name, "shared"]) - (listed[name].shared if name in listed else 0)
    faults += [f"{name} is listed, but no report knows it" for name in sorted(listed.keys() - kernels.keys())]
    faults += spill_faults(kernels)
    current = table(compiler, kernels, listed, hashes)
    if mode == "--write":
        Path(path).write_text(current)
        print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
        return 1 if faults else 0
    if not same_compiler:
        print(f"skipped: {path} was made with another compiler")
        return SKIPPED
    here = {(name, head): cell for (name, head), cell in cells_of(current).items() if program != "-" or head.startswith(("sm_", "source"))}
    differ = [key for key, cell in here.items() if known.get(key) != cell]
    stale = [f"{', '.join(key)}: {known.get(key, 'nothing')} in the table, {here[key]} here" for key in differ]
    if known.keys() <= here.keys() and current != text:  # a build that has all
        stale += difflib.unified_diff(text.splitlines(), current.splitlines(), lineterm="")
    if stale:
        faults += [f"{path} is not current: build for its architectures, and the target kernel_table", *stale[:50]]
    print("\n".join(faults + [f"{len(kernels)} kernels, {len(hashes)} units; {len(faults)} faults"]))
    return 1 if faults or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
