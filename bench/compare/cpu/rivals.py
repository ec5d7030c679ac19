"""Other attention on the CPU: PyTorch's kernels, and onnxruntime's Attention where onnx and onnxruntime are installed.

Not here: oneDNN's graph API. Its Python package is a build on SYCL, whose threads a process can't set after it has begun; and what
torch's wheels link of oneDNN they do not export.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Callable

import torch

from ..problem import Problem
from ..rivals import torch_call

ORT_TYPES = {torch.float32: ("FLOAT", "float32"), torch.float16: ("FLOAT16", "float16")}


def rival_call(name: str, p: Problem, threads: int) -> Callable[[], object]:
    return onnxruntime_call(p, threads) if name == "ORT" else torch_call(name, p)


def packages() -> dict[str, str]:
    """Versions of what is here of it."""
    versions = {"torch": torch.__version__}
    try:
        import onnx  # noqa: F401
        import onnxruntime

        versions["onnxruntime"] = onnxruntime.__version__
    except ImportError:
        pass
    return versions


@lru_cache(maxsize=None)
def session(kind: str, causal: bool, threads: int):
    import onnxruntime
    from onnx import TensorProto, helper

    element = getattr(TensorProto, kind)
    value = {name: helper.make_tensor_value_info(name, element, [f"{name}{axis}" for axis in range(4)]) for name in "qkvo"}
    node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=int(causal))
    graph = helper.make_graph([node], "attention", [value[name] for name in "qkv"], [value["o"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def onnxruntime_call(p: Problem, threads: int) -> Callable[[], object]:
    """The operator takes [batch, head, row, dim] without strides: its tensors are copies."""
    if p.q.dtype not in ORT_TYPES:
        raise RuntimeError("onnxruntime's Attention has no such type on the CPU")
    try:
        import onnxruntime

        running = session(ORT_TYPES[p.q.dtype][0], p.causal, threads)
    except ImportError as missing:
        raise RuntimeError(str(missing)) from None
    except Exception as error:  # its exceptions share no base but this
        raise RuntimeError(f"onnxruntime: {error}") from None
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x.transpose(1, 2).contiguous().numpy())
              for name, x in (("q", p.q), ("k", p.k), ("v", p.v))}

    def call(tensors_of=values):
        return running.run_with_ort_values(["o"], values)

    return call
