#!/usr/bin/env python3
"""Writes what repeats include/flashattn.h, from clang's reading of it: the declarations for Python and Rust, the fields and
operands of the safe crate and of Go, the header for C++, the assertions of its layout, and the library's list of the pointers in args.

generate_abi.py           writes the files
generate_abi.py --check   fails where a file would change

Either fails, and writes nothing, when the header, or flashattn_cp.h beside it, did not only grow since a release: what tests/abi/v* has
of each must be part of it.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import generate_abi_texts
import generate_calls

CLANGS = ("clang-19", "clang")
MACRO = re.compile(r"^#define (FA_[A-Z0-9_]+) (\(|\d)(.*)", re.M)  # of a number: neither an attribute nor an initialiser


@dataclass(frozen=True)
class Constant:
    name: str
    value: int
    kind: str  # "number", "flag" (written as 1 << n, a bit of 32), "operand" (a bit of 64)


@dataclass
class Abi:
    constants: list[list[Constant]]  # in groups that belong together
    structs: dict[str, list[tuple[str, str]]]  # fields: (name, C type)
    functions: dict[str, tuple[str, list[tuple[str, str]]]]  # result, parameters: (name, C type)
    callbacks: dict[str, str]  # C type

    def promises(self):
        """What a program may rely on, by name; of a struct the fields that it has."""
        found = {c.name: c for group in self.constants for c in group if not c.name.startswith("FA_VERSION")}
        found |= self.structs | self.callbacks
        return found | {name: (result, [kind for _, kind in args]) for name, (result, args) in self.functions.items()}


def clang_reads(clang, header):
    """The declarations of the header, and an enumeration of its macros' values."""
    macros = [(name, "ull" in first + rest) for name, first, rest in MACRO.findall(header.read_text())]
    values = "".join(f"value_of_{name} = {name}," for name, _ in macros)
    source = f"#include <{header.name}>\nenum : unsigned long long {{ {values or 'value_of_nothing'} }};\n"
    options = ["-x", "c", "-std=c11", "-w", "-fsyntax-only", "-Xclang", "-ast-dump=json"]
    read = subprocess.run([clang, *options, "-I", header.parent, "-"], input=source, capture_output=True, text=True)
    if read.returncode:
        sys.exit(f"{clang} does not compile {header}:\n{read.stderr}")
    return dict(macros), json.loads(read.stdout)["inner"]


def constant(declared, macros):
    """An enumerator, of the header or of its macros."""
    name = declared["name"].removeprefix("value_of_")
    expression = declared["inner"][0]
    while expression["kind"] != "ConstantExpr":  # casts to the enumeration's type
        expression = expression["inner"][0]
    kind = "operand" if macros.get(name) else "flag" if expression["inner"][0].get("opcode") == "<<" else "number"
    return Constant(name, int(expression["value"]), kind)


def read_header(clang, header):
    macros, declarations = clang_reads(clang, header)
    abi = Abi([], {}, {}, {})
    for x in declarations:
        name, inside = x.get("name", ""), x.get("inner", [])
        if x["kind"] == "EnumDecl" and inside and re.match("(value_of_)?FA_", inside[0]["name"]):
            abi.constants.append([constant(value, macros) for value in inside])
        elif x["kind"] == "RecordDecl" and name.startswith("fa_") and inside:
            fields = [(field["name"], field["type"]["qualType"]) for field in inside if field["kind"] == "FieldDecl"]
            abi.structs[re.sub("_s$", "_t", name)] = fields
        elif x["kind"] == "FunctionDecl" and name.startswith("fa_"):
            parameters = [(p["name"], p["type"]["qualType"]) for p in inside if p["kind"] == "ParmVarDecl"]
            abi.functions[name] = (x["type"]["qualType"].partition("(")[0].strip(), parameters)
        elif x["kind"] == "TypedefDecl" and name.startswith("fa_") and name.endswith("_fn"):
            abi.callbacks[name] = x["type"]["qualType"]
    numbers, operands = ([c for c in abi.constants[-1] if (c.kind == "operand") == wide] for wide in (False, True))
    abi.constants = [numbers, *abi.constants[:-1], operands]
    return abi


def begins_with(now, then):
    """Are a struct's fields those of a release, and perhaps more? In the place of a reserved one another of its size may lie."""
    size_of = generate_abi_texts.size_of
    same = (new == old or (old[0].startswith("reserved") and size_of(new[1]) == size_of(old[1])) for new, old in zip(now, then))
    return len(now) >= len(then) and all(same)


def what_did_not_grow(old, new):
    """A sentence for each thing of a release that is gone or has changed."""
    promises = new.promises()
    for name, then in old.promises().items():
        now = promises.get(name)
        if now is None:
            yield f"{name} is gone"
        elif not begins_with(now, then) if name in old.structs else now != then:
            yield f"{name} has changed"


def main(arguments):
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file would change")
    parser.add_argument("--clang", default=next(filter(shutil.which, CLANGS), CLANGS[0]))
    parser.add_argument("--header", type=Path, default=root / "include" / "flashattn.h")
    options = parser.parse_args(arguments)

    abi = read_header(options.clang, options.header)
    faults = []
    spread = read_header(options.clang, options.header.with_name("flashattn_cp.h"))
    for name, now in (("flashattn.h", abi), ("flashattn_cp.h", spread)):
        for release in sorted((root / "tests" / "abi").glob(f"v*/{name}")):
            faults += [f"{release.parent.name}: {fault}" for fault in what_did_not_grow(read_header(options.clang, release), now)]
    if not faults:
        for name, text in (generate_abi_texts.files(abi) | generate_calls.files(abi, options.header)).items():
            path = root / name
            if path.exists() and path.read_text() == text:
                continue
            if options.check:
                faults.append(f"{name} is not what the header says: run tools/generate_abi.py")
            else:
                path.write_text(text)
                print(f"wrote {name}")
    print("\n".join(faults or [f"{len(abi.structs)} structs, {len(abi.functions)} functions"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
