"""The declarations of the ABI in other languages: what generate_abi.py writes."""
import re
import textwrap

PYTHON = "bindings/python/flashattn/_abi.py"
LAYOUT = "tests/abi/layout.c"
POINTERS = "src/core/pointers.cc"
WIDTH = 132

# C type: bytes, ctypes, Rust
SCALARS = {
    "char": (1, "c_char", "c_char"),
    "uint8_t": (1, "c_uint8", "u8"),
    "int32_t": (4, "c_int32", "i32"),
    "uint32_t": (4, "c_uint32", "u32"),
    "int64_t": (8, "c_int64", "i64"),
    "uint64_t": (8, "c_uint64", "u64"),
    "float": (4, "c_float", "f32"),
    "fa_status_t": (4, "c_int32", "fa_status_t"),
    "fa_handle_t": (8, "Handle", "fa_handle_t"),
}
ARRAY = re.compile(r"(.*)\[(\d+)\]")
FUNCTION = re.compile(r"(.*?) \(\*\)\((.*)\)")


def files(abi):
    return {PYTHON: python(abi), LAYOUT: layout(abi), POINTERS: pointers(abi)}


def size_of(kind):
    array = ARRAY.fullmatch(kind)
    if array:
        return size_of(array[1]) * int(array[2])
    return 8 if kind.endswith(("*", "_fn")) else SCALARS[kind][0]


def offsets(fields):
    """(field, offset) of each, and the whole size: structs have no padding, which the compiler's -Wpadded makes sure of."""
    at, found = 0, []
    for name, kind in fields:
        found.append((name, at))
        at += size_of(kind)
    return found, at


def written(constant, operand_suffix=""):
    """A constant's value as the header writes it."""
    if constant.kind == "number":
        return str(constant.value)
    return hex(constant.value) + operand_suffix if constant.kind == "operand" else f"1 << {constant.value.bit_length() - 1}"


def is_sized(fields):
    """Else an array's element."""
    return fields[0][0] == "struct_size"


def groups(abi, line):
    """Constants, a line each, groups apart."""
    return "\n\n".join("\n".join(map(line, group)) for group in abi.constants)


# ------------------------------------------------------------------------------------------------------------------ Python

PYTHON_HEAD = '''"""The C ABI in ctypes: constants, structs and prototypes. Written by tools/generate_abi.py from flashattn.h, which is the manual:
change the header, then run it again."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

Handle = c_void_p


class Sized(ctypes.Structure):
    """A struct whose first field, struct_size, is set when it is made; every other field starts as zero."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


'''


def python_name(struct):
    """fa_attention_desc_t: AttentionDesc."""
    return "".join(word.capitalize() for word in struct.split("_")[1:-1])


def python_type(kind, abi, *, in_struct):
    array = ARRAY.fullmatch(kind)
    if array:
        return f"{python_type(array[1], abi, in_struct=in_struct)} * {array[2]}"
    if kind.endswith("_fn"):
        return "c_void_p"
    if not kind.endswith("*"):
        return SCALARS[kind][1]
    target = kind[:-1].replace("const ", "").strip()
    if target in abi.structs:
        return f"POINTER({python_name(target)})"
    if target == "char":
        return "c_char_p"
    if in_struct or target == "void":  # of a struct's pointers only the address matters
        return "c_void_p"
    return f"POINTER({python_type(target, abi, in_struct=False)})"


def python(abi):
    out = [PYTHON_HEAD, groups(abi, lambda c: f"{c.name} = {written(c)}"), "\n\n"]
    for name, fields in abi.structs.items():
        base = "Sized" if is_sized(fields) else "ctypes.Structure"
        out.append(f"\nclass {python_name(name)}({base}):\n    _fields_ = [\n")
        out += [f'        ("{field}", {python_type(kind, abi, in_struct=True)}),\n' for field, kind in fields]
        out.append("    ]\n\n")
    out.append("\nSTRUCTS: dict[str, type[ctypes.Structure]] = {\n"
               + "".join(f'    "{name}": {python_name(name)},\n' for name in abi.structs) + "}\n")
    out.append("\n# name: (result, arguments)\nPROTOTYPES: dict[str, tuple[Any, list[Any]]] = {\n")
    for name, (result, parameters) in abi.functions.items():
        parts = [python_type(kind, abi, in_struct=False) for kind in (result, *(kind for _, kind in parameters))]
        line = f'    "{name}": ({parts[0]}, [{", ".join(parts[1:])}]),\n'
        if len(line) > WIDTH + 1:
            line = f'    "{name}": (\n        {parts[0]},\n        [{", ".join(parts[1:])}],\n    ),\n'
        out.append(line)
    return "".join(out) + "}\n"


# -------------------------------------------------------------------------------------------------------------------- Rust

RUST_HEAD = """\
//! The C interface as it stands in `flashattn.h`, which is the manual. Written by `tools/generate_abi.py`: change the header, then run it
//! again.
#![allow(non_camel_case_types)]

use std::mem::size_of;
use std::os::raw::{c_char, c_void};

pub type fa_status_t = i32;

#[repr(C)]
pub struct fa_handle_s {
    _private: [u8; 0],
}
pub type fa_handle_t = *mut fa_handle_s;
"""
RUST_TAIL = """\
macro_rules! zeroed {
    ($($name:ident: $bytes:literal $($size:ident)?;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl Default for $name {
            /// All zero but for `struct_size`, where there is one: what the `_INIT` macro of the header gives.
            fn default() -> Self {
                // SAFETY: integers, floats, raw pointers and optional functions; all zero is a value of each.
                #[allow(unused_mut)]
                let mut zero: Self = unsafe { std::mem::zeroed() };
                $(zero.$size = size_of::<Self>() as u32;)?
                zero
            }
        }
    )*};
}
"""
RUST_KINDS = {"number": "i32", "flag": "u32", "operand": "u64"}


def split_arguments(text):
    """At the commas that lie in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def rust_function(kind):
    """The type of a function that is there."""
    result, arguments = FUNCTION.fullmatch(kind).groups()
    returned = "" if result == "void" else f" -> {rust_type(result)}"
    return f'unsafe extern "C" fn({", ".join(map(rust_type, split_arguments(arguments)))}){returned}'


def rust_type(kind):
    array = ARRAY.fullmatch(kind)
    if array:
        return f"[{rust_type(array[1])}; {array[2]}]"
    if "(*)" in kind:
        return rust_function(kind)
    if kind == "void":
        return "c_void"
    if not kind.endswith("*"):
        return SCALARS[kind][2] if kind in SCALARS else kind
    target = kind[:-1].strip()
    if target.startswith("const ") and not target.endswith("*"):
        return "*const " + rust_type(target.removeprefix("const "))
    return "*mut " + rust_type(target)


# ------------------------------------------------------------------------------------------------------------------ layout

LAYOUT_HEAD = """\
/* The layout and the numbers of flashattn.h, written by tools/generate_abi.py. Compiling this file is the test. It only grows: a field
 * more at a struct's end, whose size then changes, or a number more; what a release had, that script never lets go. */
#include <flashattn.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define AT(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " has moved")
#define IS(name, value) _Static_assert((name) == (value), #name " has another value")
"""


def layout(abi):
    out = [LAYOUT_HEAD, "\n", "SIZE(fa_status_t, 4);\nSIZE(fa_handle_t, 8);\n"]
    for name, fields in abi.structs.items():
        found, size = offsets(fields)
        out.append(f"\nSIZE({name}, {size});\n" + "".join(f"AT({name}, {field}, {at});\n" for field, at in found))
    return "".join(out) + "\n" + groups(abi, lambda c: f"IS({c.name}, {written(c, 'ull')});") + "\n"


# ---------------------------------------------------------------------------------------------------------------- pointers

POINTERS_HEAD = """\
// Every pointer to a tensor in an args struct, written by tools/generate_abi.py.
#include "core/pointers.h"
#include <stddef.h>

#define POINTER(field) {offsetof(Args, field), #field}

namespace fa {
"""
POINTERS_OF = """
template <>
Pointers pointers_of<{name}>() {{
    using Args = {name};
    static constexpr Pointer list[] = {{
{list}
    }};
    return {{list, sizeof list / sizeof *list}};
}}
"""
NO_TENSORS = {"stream", "workspace", "forward"}


def pointers(abi):
    out = [POINTERS_HEAD]
    for name, fields in abi.structs.items():
        if name.endswith("_args_t"):
            tensors = [f"POINTER({field})," for field, kind in fields if kind.endswith("*") and field not in NO_TENSORS]
            lines = textwrap.fill(" ".join(tensors), WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
            out.append(POINTERS_OF.format(name=name, list=lines))
    return "".join(out) + "\n}  // namespace fa\n"
