"""The crates: flashattn-sys, the C interface with its documentation, and of the safe crate what follows the header field by field."""
import re

from generate_abi_texts import ARRAY, RUST_HEAD, RUST_KINDS, RUST_TAIL, WIDTH, is_sized, offsets, rust_function, rust_type, written

# Prefix of an enumeration's constants: its name, and what it is. Used by Go, too.
ENUMS = {
    "FA_BACKEND_": ("Backend", "Where a handle computes."),
    "FA_LOG_": ("LogLevel", "Which lines the log gets."),
    "FA_POOL_": ("ThreadPool", "The pool of CPU threads."),
    "FA_PRECISION_": ("Precision", "What may be rounded."),
    "FA_ALIGN_": ("Alignment", "Where the diagonal of a mask is."),
    "FA_ALGORITHM_": ("Algorithm", "How it is computed."),
    "FA_SCORES_": ("ScoresStage", "Which scores are written."),
    "FA_LIST_": ("ListSpace", "What an entry of a key list counts."),
    "FA_OP_": ("Op", "The call that a query is about."),
}
TYPED = {"alignment": "Alignment", "algorithm": "Algorithm", "precision": "Precision", "scores_stage": "ScoresStage",
         "list_space": "ListSpace"}
# Fields of the descriptor that a method of several values sets, or that calls fill in.
BY_HAND = {"struct_size", "flags", "operands", "strided", "alignment", "scale", "window_left", "window_right"}
SCALARS = {"float": "f32", "int32_t": "i32", "uint8_t": "u8", "uint32_t": "u32", "uint64_t": "u64"}
HEAD = "// Written by tools/generate_abi.py from flashattn.h: change the header, then run it again.\n"


def settable(abi):
    """Fields of the descriptor that are set one by one, by name. Those called reserved fill a struct up to a multiple of 8 bytes."""
    return [(name, kind) for name, kind in abi.structs["fa_attention_desc_t"] if name not in BY_HAND and not name.startswith("reserved")]


def camel(name):
    return "".join(word[:1].upper() + word[1:].lower() for word in name.split("_"))


def doc(lines, indent="", mark="///"):
    """Doc comments. What the header indents is a formula or a table and stays as it is."""
    out, fenced = [], False
    for line in lines:
        literal = line.startswith("   ")
        if literal != fenced and (line or fenced):
            out.append("```text" if literal else "```")
            fenced = literal
        out.append(line)
    if fenced:
        out.append("```")
    return "".join(f"{indent}{mark} {line}".rstrip() + "\n" for line in out)


def enums(abi, docs):
    """(name, text, [(variant, constant, text)]) of each enumeration that has a type of its own."""
    for group in abi.constants:
        for prefix, (name, text) in ENUMS.items():
            if group[0].name.startswith(prefix) and group[0].kind == "number":
                yield name, text, [(c.name.removeprefix(prefix), c.name, docs.get(c.name, [])) for c in group]


def group_of(abi, constant):
    return next(group for group in abi.constants if any(c.name == constant for c in group))


def plain_flags(abi):
    """The flags of the descriptor that stand alone. The others come with a field: their setters are written by hand."""
    return [c.name for c in group_of(abi, "FA_CAUSAL") if c.name not in ("FA_CAUSAL", "FA_WINDOW", "FA_SCALE_EXPLICIT")]


# ---------------------------------------------------------------------------------------------------------------------- sys


def sys(abi, docs):
    out = [RUST_HEAD.replace("#![allow(non_camel_case_types)]",
                        "#![allow(missing_docs, non_camel_case_types, rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]"), "\n"]
    for name, kind in abi.callbacks.items():
        line = f"pub type {name} = Option<{rust_function(kind)}>;\n"
        out.append(line if len(line) <= WIDTH + 1 else line.replace(" = ", " =\n    "))
    out.append("\n" + "\n".join("".join(doc(docs.get(c.name, [])) + f"pub const {c.name}: {RUST_KINDS[c.kind]} = {written(c)};\n"
                                        for c in group) for group in abi.constants))
    for name, fields in abi.structs.items():
        out.append(f"\n{doc(docs[name])}#[repr(C)]\n#[derive(Clone, Copy)]\npub struct {name} {{\n")
        out += [f"{doc(docs[f'{name}.{field}'], '    ')}    pub {field}: {rust_type(kind)},\n" for field, kind in fields] + ["}\n"]
    out.append('\nextern "C" {\n')
    for name, (result, parameters) in abi.functions.items():
        arguments = [f"{argument}: {rust_type(kind)}" for argument, kind in parameters]
        line = f"    pub fn {name}({', '.join(arguments)}) -> {rust_type(result)};\n"
        if len(line) > WIDTH + 1:
            line = f"    pub fn {name}(\n" + "".join(f"        {a},\n" for a in arguments) + f"    ) -> {rust_type(result)};\n"
        out.append(doc(docs[name], "    ") + line)
    sizes = "\n".join(f"    {name}: {offsets(fields)[1]}{' struct_size' if is_sized(fields) else ''};"
                      for name, fields in abi.structs.items())
    return "".join(out) + "}\n\n" + RUST_TAIL + f"zeroed!(\n{sizes}\n);\n"


# --------------------------------------------------------------------------------------------------------------- the safe one


def errors(abi, docs):
    found = [c for c in group_of(abi, "FA_OK") if c.name != "FA_OK"]
    lines = [doc(docs.get(c.name) or ["The library's own words say more."], "    ") +
             f"    {camel(c.name.removeprefix('FA_'))} = {c.name},\n" for c in found]
    return HEAD + "errors! {\n" + "".join(lines) + "}\n"


def types(abi, docs):
    out = [HEAD]
    for name, text, variants in enums(abi, docs):
        lines = [doc(t or [f"`{c}`."], "    ") + f"    {camel(v)} = {c},\n" for v, c, t in variants]
        out.append(f"choices! {{\n    /// {text}\n    {name}\n" + "".join(lines) + "}\n")
    lines = [doc(docs.get(c.name) or [f"`{c.name}`."], "    ") + f"    {camel(c.name.removeprefix('FA_'))} = {c.name},\n"
             for c in group_of(abi, "FA_F32")]
    out.append("choices! {\n    /// How elements are stored.\n    Dtype\n" + "".join(lines) + "}\n")
    return "".join(out)


def setters(abi, docs):
    """A method for each field of the descriptor, and for each flag that stands alone."""
    strides = {c.name for c in group_of(abi, "FA_STRIDED_Q")}
    out = []
    for name, kind in settable(abi):
        text = doc(docs[f"fa_attention_desc_t.{name}"] or ["As the field of this name in `flashattn.h`."], "    ")
        array, bit = ARRAY.fullmatch(kind), f"FA_STRIDED_{name.removesuffix('_stride').upper()}"
        if name.endswith("_dtype"):
            how = "dtype"
        elif name in TYPED:
            how = f"choice {TYPED[name]}"
        elif array:
            how = f"array {array[2]} {bit}" if bit in strides else f"array {array[2]}"
        else:
            how = {"float": "real", "int32_t": "small", "int64_t": "size"}[kind]
        out.append(f"{text}    {how} {name};\n")
    for flag in plain_flags(abi):
        out.append(f"{doc(docs[flag], '    ')}    flag {flag.removeprefix('FA_').lower()} {flag};\n")
    return HEAD + "of_attention! {\n" + "".join(out) + "}\n"


def calls(found, docs):
    out = [HEAD]
    for call in found:
        out.append(f"operands! {{\n    {camel(call.name)}, {call.struct}, {call.op};\n")
        for t in call.tensors:
            text = doc(t.doc or ["As the pointer of this name in `flashattn.h`."], "    ")
            way = "output" if t.written else "input"
            what = f"of {t.dtype}" if t.element == "void" else f"{SCALARS[t.element]}"
            out.append(f"{text}    {way} {what} {t.name} {t.operand or 0};\n")
        for o in call.options:
            if o.name == "flags":
                continue
            text = doc(o.doc or ["As the field of this name in `flashattn.h`."], "    ")
            array = ARRAY.fullmatch(o.kind)
            how = f"array {array[2]}" if array else {"int64_t": "size", "uint64_t": "word"}[o.kind]
            out.append(f"{text}    {how} {o.name};\n")
        out.append("}\n")
    return "".join(out)


def files(abi, docs, found):
    safe = "bindings/rust/flashattn/src/generated"
    return {"bindings/rust/flashattn-sys/src/bindings.rs": sys(abi, docs), f"{safe}/errors.rs": errors(abi, docs),
            f"{safe}/types.rs": types(abi, docs), f"{safe}/setters.rs": setters(abi, docs), f"{safe}/calls.rs": calls(found, docs)}
