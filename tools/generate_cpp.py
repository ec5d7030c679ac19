"""flashattn.hpp: the template of that name, filled with the args structs."""
import re

ARRAY = re.compile(r"(.*)\[(\d+)\]")
STREAM = "void* stream = nullptr; /* with FA_ARGS_STREAM */"
WORKSPACE = "Span<char> workspace{}; /* none: the handle's own scratch memory */"


def camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


def initial(struct):
    """FA_FORWARD_ARGS_INIT of fa_forward_args_t."""
    return struct[:-2].upper() + "_INIT"


def comment(lines, indent=""):
    """At a field: a short one after it, a long one above."""
    return [f"{indent}/* " + f"\n{indent} * ".join(lines) + " */"] if lines else []


def field(declaration, doc):
    if len(doc) < 2 and len(declaration) + sum(map(len, doc)) < 120:
        return "    " + " ".join([declaration, *comment(doc)])
    return "\n".join(comment(doc, "    ") + ["    " + declaration])


def args_struct(call):
    def tensor(t):
        if t.element == "void":
            return "Tensor" if t.written else "ConstTensor"
        return f"Span<{'' if t.written else 'const '}{t.element}>"

    def option(o):
        array = ARRAY.fullmatch(o.kind)
        return f"{array[1]} {o.name}[{array[2]}] = {{}};" if array else f"{o.kind} {o.name} = 0;"

    fields = [field(option(o), o.doc) for o in call.options if o.name == "flags"]
    fields += [field(f"{tensor(t)} {t.name}{{}};", t.doc) for t in call.tensors]
    fields += [field(option(o), o.doc) for o in call.options if o.name != "flags"]
    fields += [f"    {STREAM}", f"    {WORKSPACE}"]
    return f"\n/* {call.function}: {call.struct} of flashattn.h. */\nstruct {camel(call.name)}Args {{\n" + "\n".join(fields) + "\n};\n"


def of_half(call, of_q):
    """Where the call has a tensor of q's or of k's, by its flag."""
    of_k = call.of_k(of_q)
    return of_q if of_k == of_q else f"given.flags & {call.of_k_flag} ? {of_k} : {of_q}"


def functions(call):
    given, out = f"{camel(call.name)}Args", []
    out.append(f"inline int32_t op_of(const {given}&) {{ return {call.op}; }}")
    out.append(f"inline {call.struct} blank(const {given}& given) {{")
    out.append(f"    {call.struct} args = {initial(call.struct)};")
    for o in call.options:
        array = ARRAY.fullmatch(o.kind)
        out.append(f"    for (int i = 0; i < {array[2]}; i++) args.{o.name}[i] = given.{o.name}[i];" if array else
                   f"    args.{o.name} = given.{o.name};")
    out += ["    args.stream = given.stream;", "    args.workspace = given.workspace.data();",
            "    args.workspace_size = given.workspace.size();", "    return args;", "}"]
    out.append(f"inline void bind(Binding& b, {call.struct}& args, const {given}& given) {{")
    for t in call.tensors:
        type_ = f", {of_half(call, f'&fa_attention_desc_t::{t.dtype}')}" if t.dtype else ""
        out.append(f'    b.set("{t.name}", args.{t.name}, given.{t.name}, {of_half(call, t.operand or "0")}{type_});')
    out.append("}")
    out.append(f"inline fa_status_t run(fa_handle_t handle, const fa_attention_desc_t& desc, const {call.struct}& args) {{")
    out.append(f"    return {call.function}(handle, &desc, &args);\n}}")
    return "\n".join(out) + "\n"


def cpp(template, abi, calls):
    values = {c.name: c.value for group in abi.constants for c in group}
    text = template.replace("TEMPLATE_VERSION", str(values["FA_VERSION"])).replace("TEMPLATE_MAJOR", str(values["FA_VERSION_MAJOR"]))
    text = text.replace("/* TEMPLATE_ARGS */", "".join(map(args_struct, calls)))
    text = text.replace("/* TEMPLATE_BIND */", "\n" + "\n".join(map(functions, calls)))
    return text
