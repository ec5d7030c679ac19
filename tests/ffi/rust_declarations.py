"""The Rust declarations say exactly what the header says: constants, structs field by field, functions argument by argument."""
import re
import sys

SCALARS = {
    "float": "f32", "uint8_t": "u8", "int32_t": "i32", "uint32_t": "u32", "int64_t": "i64", "uint64_t": "u64",
    "char": "c_char", "void": "c_void",
}


def rust_type(c):
    """`const float*` becomes `*const f32`."""
    c = c.strip()
    if not c.endswith("*"):
        return SCALARS.get(c, c)
    inner = c[:-1].strip()
    constant = inner.startswith("const ") and not inner.endswith("*")
    return ("*const " if constant else "*mut ") + rust_type(inner.removeprefix("const ") if constant else inner)


def rust_field(c):
    """`int64_t q_stride[4]` becomes ("q_stride", "[i64; 4]")."""
    kind, name, length = re.fullmatch(r"(.*[ *])(\w+)(?:\[(\d+)\])?", " ".join(c.split())).groups()
    return name, f"[{rust_type(kind)}; {length}]" if length else rust_type(kind)


def read_header(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    constants = {name: int(value) for name, value in re.findall(r"#define (FA_VERSION_\w+) (\d+)", text)}
    for body in re.findall(r"enum \{(.*?)\}", text, re.S):
        constants |= {name: shifted(value) for name, value in re.findall(r"(FA_\w+) = (\d+ << \d+|\d+)", body)}
    structs = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S):
        structs[name] = [rust_field(field) for field in body.split(";") if field.strip()]
    functions = {}
    for result, name, arguments in re.findall(r"^FA_API ([\w *]*?)(\w+)\(([^)]*)\);", text, re.M):
        fields = [] if arguments == "void" else [rust_field(argument) for argument in arguments.split(",")]
        functions[name] = (fields, rust_type(result))
    return constants, structs, functions


def read_rust(text):
    constants = {name: shifted(value) for name, value in re.findall(r"pub const (\w+): [iu]32 = ([^;]+);", text)}
    structs = {}
    for name, body in re.findall(r"#\[repr\(C\)\]\s*(?:#\[derive[^\n]*\n)?pub struct (\w+_t) \{(.*?)\n\}", text, re.S):
        structs[name] = re.findall(r"pub (\w+): ([^,]+),", body)
    functions = {}
    for name, arguments, result in re.findall(r"pub fn (\w+)\((.*?)\) -> ([^;]+);", text, re.S):
        functions[name] = (re.findall(r"(\w+): ([^,]+?)\s*(?:,|$)", arguments), result)
    return constants, structs, functions


def shifted(value):
    """"1 << 3" becomes 8."""
    one, _, bits = value.partition("<<")
    return int(one) << int(bits or 0)


def main(header, rust):
    faults = 0
    read = zip(("constants", "structs", "functions"), read_header(open(header).read()), read_rust(open(rust).read()))
    for kind, expected, actual in read:
        if len(expected) < 5:
            faults += 1
            print(f"only {len(expected)} {kind} found in {header}")
        for name in sorted(expected.keys() | actual.keys()):
            if expected.get(name) != actual.get(name):
                faults += 1
                print(f"{name}:\n  header {expected.get(name)}\n  rust   {actual.get(name)}")
        print(f"{len(expected)} {kind} compared")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
