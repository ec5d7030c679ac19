"""What flashattn.torch takes of torch that torch does not document: all of it is looked up here, so that a torch without it is refused
where flashattn.torch is imported, and not in the middle of a model."""

from __future__ import annotations

import pkgutil
from typing import Any

import torch

_OLDEST = "2.8"
LATER = torch.__version__ >= "2.16"  # than those that the tests ran with
_USED = (  # by these names elsewhere in the package
    "torch.autograd.forward_ad:_current_level",
    "torch.autograd.profiler:_is_profiler_enabled",
    "torch.library:Library._destroy",
    "torch:ops.aten.scaled_dot_product_attention.default._dispatch_cache",
    "torch:ops.aten.scaled_dot_product_attention.default.decompose",
    "torch:ops.aten.scaled_dot_product_attention.default.redispatch",
    *(
        f"torch._C:{name}"
        for name in (
            "DisableTorchFunction",
            "DispatchKey.BackendSelect",
            "DispatchKeySet.raw_repr",
            "_AutoDispatchBelowAutograd",
            "_ExcludeDispatchKeyGuard",
            "_FunctionBase",
            "_any_requires_grad",
            "_current_autograd_node",
            "_current_graph_task_id",
            "_disabled_torch_function_impl",
            "_dispatch_keys",
            "_dispatch_tls_local_exclude_set",
            "_dispatch_tls_local_include_set",
            "_functorch.maybe_current_level",
            "_get_obj_in_tls",
            "_is_key_in_tls",
            "_len_torch_function_stack",
            "_stash_obj_in_tls",
        )
    ),
)


def _part(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (AttributeError, ImportError) as error:
        part = name.replace(":", ".")
        raise ImportError(f"torch is {torch.__version__}, which has no {part}: expected an earlier one for flashattn.torch") from error


if torch.__version__ < _OLDEST:
    raise ImportError(f"torch is {torch.__version__}: expected {_OLDEST} or later for flashattn.torch")
for _name in _USED:
    _part(_name)

FakeTensor = _part("torch._subclasses.fake_tensor:FakeTensor")
FunctionalTensor = _part("torch._subclasses.functional_tensor:FunctionalTensor")
SingleLevelFunction = _part("torch.autograd.function:_SingleLevelFunction")
enable_single_level_autograd_function = _part("torch._functorch.utils:enable_single_level_autograd_function")
set_eval_frame = _part("torch._C._dynamo.eval_frame:set_eval_frame")
set_fwd_grad_enabled = _part("torch.autograd.forward_ad:_set_fwd_grad_enabled")
_action = _part("torch._C._dynamo.eval_frame:_FrameAction")
_strategy = _part("torch._C._dynamo.eval_frame:_FrameExecStrategy")
_set_strategy = _part("torch._C._dynamo.eval_frame:set_code_exec_strategy")


def skip(code: Any) -> None:
    """Has torch.compile make no program of a function's code."""
    _set_strategy(code, _strategy(_action.SKIP, _action.DEFAULT))
