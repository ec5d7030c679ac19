"""The calls of the ABI as every binding sees them: a descriptor and an args struct, whose pointers have names, element types and operand
bits. A field that the header gains is in each language when generate_abi.py has run."""
import functools
from dataclasses import dataclass
from pathlib import Path

import generate_cpp
import generate_go
import generate_rust
import header_manual

NO_TENSORS = {"stream", "workspace", "forward"}
CALLS = {  # args struct: the call and its op
    "fa_forward_args_t": ("fa_forward_ex", "FA_OP_FORWARD"),
    "fa_backward_args_t": ("fa_backward", "FA_OP_BACKWARD"),
    "fa_merge_args_t": ("fa_merge", "FA_OP_MERGE"),
    "fa_rotary_args_t": ("fa_rotary", "FA_OP_ROTARY"),
    "fa_append_kv_args_t": ("fa_append_kv", "FA_OP_APPEND_KV"),
}
# Whose field of the descriptor has a tensor's type, where it is not its own name's.
TYPED_AS = {"dout": "q", "dq": "q", "dk": "k", "dv": "v", "k_new": "q", "v_new": "q", "x": "q", "out": "q", "k_shift": "k_descale",
            "v_shift": "v_descale"}
# Whose operand bit a pointer has, where it is not its own name's.
OPERAND_OF = {"alibi_slopes": "alibi", "cu_seqlens": "cu_seqlens_q", "seqused": "seqused_q"}


@dataclass(frozen=True)
class Tensor:
    name: str
    element: str  # C type, "void" for one that the descriptor names
    written: bool
    operand: str  # FA_OPERAND_…, or ""
    dtype: str  # the descriptor's field that has its type, or ""
    doc: list[str]


@dataclass(frozen=True)
class Option:
    name: str
    kind: str  # C type
    doc: list[str]


# What stands for a name of q's in a call whose tensor has k's half of the descriptor by a flag.
OF_K = {"q_dtype": "k_dtype", "FA_OPERAND_CU_SEQLENS_Q": "FA_OPERAND_CU_SEQLENS_K", "FA_OPERAND_SEQUSED_Q": "FA_OPERAND_SEQUSED_K"}


@dataclass(frozen=True)
class Call:
    name: str  # "forward"
    struct: str
    function: str
    op: str
    doc: list[str]
    tensors: list[Tensor]
    options: list[Option]  # all else that a caller sets but stream and workspace
    of_k_flag: str = ""  # by which its tensor has k's half of the descriptor

    def of_k(self, text):
        """The text with k's names in the place of q's, where the call has such a flag."""
        return functools.reduce(lambda t, q: t.replace(q, OF_K[q]), OF_K, text) if self.of_k_flag else text


def files(abi, header):
    """What the bindings are made of: name, text."""
    docs = header_manual.read(header).comments()
    found = calls(abi, docs)
    templates = Path(__file__).resolve().parent / "templates"
    return {"include/flashattn.hpp": generate_cpp.cpp((templates / "flashattn.hpp").read_text(), abi, found),
            **generate_rust.files(abi, docs, found), **generate_go.files(abi, docs, found)}


def calls(abi, docs):
    operands = {c.name for group in abi.constants for c in group if c.kind == "operand"}
    flags = {c.name for group in abi.constants for c in group}
    types = {name for name, _ in abi.structs["fa_attention_desc_t"] if name.endswith("_dtype")}
    found = []
    for struct, (function, op) in CALLS.items():
        tensors, options = [], []
        for name, kind in abi.structs[struct]:
            doc = docs[f"{struct}.{name}"]
            if kind.endswith("*") and name not in NO_TENSORS:
                element = kind.rstrip("* ").removeprefix("const ")
                operand = f"FA_OPERAND_{OPERAND_OF.get(name, name).upper()}"
                dtype = f"{TYPED_AS.get(name, name)}_dtype"
                tensors.append(Tensor(name, element, not kind.startswith("const "), operand if operand in operands else "",
                                      dtype if element == "void" and dtype in types else "", doc))
            elif name not in NO_TENSORS | {"struct_size", "workspace_size"}:
                options.append(Option(name, kind, doc))
        flag = f"{struct[:-len('_args_t')].upper()}_OF_K"
        found.append(Call(op.removeprefix("FA_OP_").lower(), struct, function, op, docs[struct], tensors, options,
                          flag if flag in flags else ""))
    untyped = [f"{call.struct}.{t.name}" for call in found for t in call.tensors if t.element == "void" and not t.dtype]
    if untyped:
        raise SystemExit(f"TYPED_AS does not say which field of the descriptor has the type of {', '.join(untyped)}")
    return found
