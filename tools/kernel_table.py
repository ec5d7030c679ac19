#!/usr/bin/env python3
"""The tables of GPU kernels: registers and spills as ptxas reports them, tiles and shared memory as the backend lists them, and a hash of
each translation unit's PTX.

kernel_table.py NVCC VERSION LIST REPORT…                 prints the tables, docs/generated/kernels.md
kernel_table.py --check TABLE NVCC VERSION LIST REPORT…   fails when TABLE does not have what this build has, or a kernel spills

NVCC and VERSION: the compiler. LIST: the program tests/budgets/kernel_list. REPORT: what tools/keep_ptxas_report kept, OBJECT.ptxas, with
the PTX beside it. A build for some of TABLE's architectures, or with some of its units, is compared in what it has. Where a build has PTX
alone (FA_CUDA_PTX), equal hashes say that registers are as TABLE has them, and a unit of each family is assembled to see that they are.
Another compiler than TABLE's cannot tell whether it is current: the check is skipped (77).
"""
import difflib
import hashlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict, namedtuple
from pathlib import Path

SKIPPED = 77
ENTRY = re.compile(r"Compiling entry function '(.*)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STATIC_SHARED = re.compile(r"(\d+) bytes smem")
# Waits that ptxas inserts between asynchronous matrix multiplications: each costs a kernel its overlap.
SERIALISED = re.compile(r"\(C751[0-6]\)")
HOPPER = re.compile(r"forward_sm90<(?:Descaled<)?(\w+)>?, (\d+), (\d+), (\d+), (\d+), \(MaskKind\)\d, \w+, \(ScoreMod\)\d, (\d+), (\d+), \(PvProduct\)(\d)>")

# Names of what is local to a file hold hashes of its path and the compiler's process number: mangled, after their length.
LOCAL = re.compile(r"(\d+)_(GLOBAL__N_|INTERNAL)_(?=[0-9a-f]{8}_)")
# Of each family a unit that is quickly assembled.
SAMPLES = ("mma_Bf16_64", "bwd_mma_16bit_64", "mma_latent", "sm90/wide/dispatch", "sm90/latent/boxes", "bwd_sm90_Bf16_64",
           "bwd_sm90_Bf16_256")
UNITS = "## Translation units"

Listed = namedtuple("Listed", "rows columns keys threads resident shared")
HEAD = """# Kernels of the CUDA backend

Made by `tools/kernel_table.py` with nvcc {compiler}; a test compares. Shared memory is what a block takes at the widest head dimension
of its tile, in bytes. A spill is a register's value that had to go to memory, in bytes written.
"""
UNITS_HEAD = f"""
{UNITS}

A hash of each unit's PTX. Where it is the same, so are the registers above: continuous integration compiles kernels to PTX and assembles few.

"""


class Kernel:
    def __init__(self):
        self.registers = self.stored = self.loaded = self.shared = 0


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


def read_ptx(reports):
    """{unit: {architecture: path of its PTX}}"""
    units = {}
    for report in reports:
        beside = Path(report).parent.glob(Path(report).name.removesuffix(".ptxas") + ".*.ptx")
        unit = report.partition(".dir/")[2].removeprefix("./").removesuffix(".cu.o.ptxas")
        units[unit] = {path.suffixes[-2][1:]: path for path in beside}
    return units


def without_local_names(ptx):
    parts, end = [], 0
    for found in LOCAL.finditer(ptx):
        parts += [ptx[end:found.start()], found.group(2)]
        end = found.end(1) + int(found.group(1))
    return "".join(parts) + ptx[end:]


def hash_of(ptx):
    lines = (line for line in ptx.read_text().splitlines() if not line.startswith("//"))
    return hashlib.sha256(without_local_names("\n".join(lines)).encode()).hexdigest()[:16]


def assembled(nvcc, units, kernels):
    """As read_report, of SAMPLES, which are assembled as nvcc would."""
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        for unit in SAMPLES:
            for architecture, ptx in units.get(unit, {}).items():
                command = [Path(nvcc).parent / "ptxas", "--warning-as-error", "-arch", architecture, "-m64", "-v", "--fmad", "false", ptx,
                           "-o", f"{folder}/o"]
                told = subprocess.run(command, capture_output=True, text=True)
                faults += read_report(unit, told.stderr, kernels)
                if told.returncode:
                    faults.append(f"{unit} is not assembled for {architecture}: {told.stderr[-500:]}")
    return faults


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


def table(compiler, kernels, listed, units):
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
    built_for = sorted({a for by_architecture in units.values() for a in by_architecture})
    lines += [UNITS_HEAD + "| unit | " + " | ".join(built_for) + " |", "|---" * (len(built_for) + 1) + "|"]
    for unit, by_architecture in sorted(units.items()):
        cells = [hash_of(by_architecture[a]) if a in by_architecture else "–" for a in built_for]
        lines.append(f"| `{unit}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cells_of(text):
    """{(name of a kernel or a unit, head of its column): cell}, of architectures."""
    cells, heads = {}, []
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else None
        if row and row[0] in ("kernel", "unit"):
            heads = row
        elif row:
            cells.update({(row[0], head): cell for head, cell in zip(heads, row) if head.startswith("sm_") and cell != "–"})
    return cells




def spill_faults(kernels):
    for name, on in sorted(kernels.items()):
        spilled = {a: max(k.stored, k.loaded) for a, k in on.items() if k.stored or k.loaded}
        if spilled:
            yield f"{name} spills: {', '.join(f'{bytes} bytes on {a}' for a, bytes in sorted(spilled.items()))}"


def main(arguments):
    check = arguments[:1] == ["--check"]
    committed = arguments[1] if check else None
    nvcc, compiler, program, *reports = arguments[2 if check else 0:]
    kernels, faults = defaultdict(dict), []
    for report in reports:
        faults += read_report(Path(report).name, Path(report).read_text(), kernels)
    units = read_ptx(reports)
    listed = read_list(program)
    if kernels:
        listed.update(hopper_kernels(kernels))
        faults += [f"{name} is listed, but no report knows it" for name in sorted(listed.keys() - kernels.keys())]
    elif check:
        faults += assembled(nvcc, units, kernels)
    faults += spill_faults(kernels)
    current = table(compiler, kernels, listed, units)
    if not check:
        print(current, end="")
        print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
        return 1 if faults else 0
    text = Path(committed).read_text()
    if f"nvcc {compiler};" not in text:
        print(f"skipped: {committed} was made with another compiler")
        return SKIPPED
    known, here = cells_of(text), cells_of(current)
    stale = [f"{name}, {head}: {known.get((name, head), 'nothing')} in the table, {cell} here"
             for (name, head), cell in here.items() if known.get((name, head)) != cell]
    if {name for name, _ in known} <= {name for name, _ in here} and current != text:  # a build that has all
        stale += difflib.unified_diff(text.splitlines(), current.splitlines(), lineterm="")
    if stale:
        faults += [f"{committed} is not current: build for its architectures, and the target kernel_table", *stale[:50]]
    print("\n".join(faults + [f"{len(kernels)} kernels, {len(units)} units; {len(faults)} faults"]))
    return 1 if faults or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
