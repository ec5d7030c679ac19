#!/usr/bin/env python3
"""The table of GPU kernels: registers and spills as ptxas reports them, tiles and shared memory as the backend lists them.

kernel_table.py COMPILER LIST REPORT…                 prints the table, docs/generated/kernels.md
kernel_table.py --check TABLE COMPILER LIST REPORT…   fails when TABLE is not that, or a kernel spills

COMPILER: nvcc's version. LIST: the program tests/budgets/kernel_list. REPORT: what tools/keep_ptxas_report kept. A build for some of TABLE's
architectures, or with Hopper's kernels of some types, is compared with their columns and rows. Another compiler than TABLE's, or other architectures, cannot tell whether it is current: the
check is skipped (77).
"""
import difflib
import re
import subprocess
import sys
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

Listed = namedtuple("Listed", "rows columns keys threads resident shared")
HEAD = """# Kernels of the CUDA backend

Made by `tools/kernel_table.py` with nvcc {compiler}; a test compares. Shared memory is what a block takes at the widest head dimension
of its tile, in bytes. A spill is a register's value that had to go to memory, in bytes written.
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


def read_reports(paths):
    """{kernel: {architecture: Kernel}}. What a kernel's functions spill is the kernel's."""
    kernels, faults, kernel = defaultdict(dict), [], None
    for path in paths:
        for line in output_of("c++filt", text=Path(path).read_text()).splitlines():
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
                faults.append(f"{Path(path).name}: {line}")
    return kernels, faults


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


def table(compiler, kernels, listed):
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
    return "\n".join(lines) + "\n"


def columns_for(text, architectures):
    """A table without the columns of other architectures; None where it lacks one of these."""
    lines = text.splitlines(keepends=True)
    rows = [n for n, line in enumerate(lines) if line.startswith("|")]
    heads = [cell.strip() for cell in lines[rows[0]].split("|")]
    if not all(f"{a}: registers" in heads for a in architectures):
        return None
    kept = [n for n, head in enumerate(heads) if ":" not in head or head.split(":")[0] in architectures]
    for row in rows:
        cells = lines[row].split("|")
        lines[row] = "|".join(cells[n] for n in kept)
    return "".join(lines)


def rows_for(text, kernels):
    """A table without Hopper's kernels of types of which the build has none."""
    built = {found.group(1) for found in map(HOPPER.fullmatch, kernels) if found}

    def is_built(line):
        found = HOPPER.fullmatch(line[3:].partition("`")[0])
        return not found or found.group(1) in built

    return "".join(line for line in text.splitlines(keepends=True) if is_built(line))


def spill_faults(kernels):
    for name, on in sorted(kernels.items()):
        spilled = {a: max(k.stored, k.loaded) for a, k in on.items() if k.stored or k.loaded}
        if spilled:
            yield f"{name} spills: {', '.join(f'{bytes} bytes on {a}' for a, bytes in sorted(spilled.items()))}"


def main(arguments):
    check = arguments[:1] == ["--check"]
    committed = arguments[1] if check else None
    compiler, program, *reports = arguments[2 if check else 0:]
    kernels, faults = read_reports(reports)
    listed = read_list(program)
    listed.update(hopper_kernels(kernels))
    faults += [f"{name} is listed, but no report knows it" for name in sorted(listed.keys() - kernels.keys())]
    current = table(compiler, kernels, listed)
    if not check:
        print(current, end="")
        return 1 if faults else 0
    text = columns_for(Path(committed).read_text(), architectures_of(kernels))
    if text is None or f"nvcc {compiler};" not in text:
        print(f"skipped: {committed} was made with another compiler or for other architectures")
        return SKIPPED
    text = rows_for(text, kernels)
    faults += spill_faults(kernels)
    if current != text:
        faults += [f"{committed} is not current: run the build's target kernel_table"]
        faults += difflib.unified_diff(text.splitlines(), current.splitlines(), lineterm="")
    print("\n".join(faults + [f"{len(kernels)} kernels, {len(listed)} of them listed; {len(faults)} faults"]))
    return 1 if faults or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
