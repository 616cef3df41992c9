"""The names of PyTorch's extension that calque uses, each with what it is for.

PyTorch promises users few of them. A new version is read here first; a linter rule keeps `torch._C`
out of the other modules. Some have a public form that costs more than the operators that stand
around it (`torch.is_grad_enabled` asks the function modes).
"""

from typing import Any

import torch

_C = torch._C
extension = _C  # where a trace puts a function in the place of another one

# Operators and their schemas.
Argument = _C.Argument
FunctionSchema = _C.FunctionSchema
VariableFunctions = _C._VariableFunctions  # where functions of `torch` are at home
get_schema = _C._get_schema
jit_get_schemas_for_operator = _C._jit_get_schemas_for_operator
dispatch_get_all_op_names = _C._dispatch_get_all_op_names

# The dispatcher.
DispatchKey = _C.DispatchKey
DispatchKeySet = _C.DispatchKeySet
AutoDispatchBelowAutograd = _C._AutoDispatchBelowAutograd
ExcludeDispatchKeyGuard = _C._ExcludeDispatchKeyGuard
dispatch_keys = _C._dispatch_keys
dispatch_has_kernel_for_dispatch_key = _C._dispatch_has_kernel_for_dispatch_key
dispatch_has_computed_kernel_for_dispatch_key = _C._dispatch_has_computed_kernel_for_dispatch_key

# Modes of the thread.
DisableTorchFunction = _C.DisableTorchFunction
TorchDispatchModeKey = _C._TorchDispatchModeKey
get_dispatch_mode = _C._get_dispatch_mode
len_torch_dispatch_stack = _C._len_torch_dispatch_stack
len_torch_function_stack = _C._len_torch_function_stack
is_grad_enabled = _C.is_grad_enabled
set_grad_enabled = _C._set_grad_enabled
is_any_autocast_enabled = _C._is_any_autocast_enabled
get_default_dtype = _C.get_default_dtype
get_mkldnn_enabled = _C._get_mkldnn_enabled
set_mkldnn_enabled = _C._set_mkldnn_enabled
functorch = _C._functorch  # whether a function transform is running

# Tensors and their memory.
Generator = _C.Generator
ScriptMethod = _C.ScriptMethod
StorageBase = _C.StorageBase
WeakTensorRef = _C._WeakTensorRef
increment_version = _C._increment_version
swap_tensor_impl = _C._swap_tensor_impl
from_dlpack = _C._from_dlpack
to_dlpack = _C._to_dlpack

# Gradients.
autograd = _C._autograd  # the kinds of devices, hooks of saved tensors, how views were made
functions = _C._functions  # errors that a backward raises late
current_graph_task_id = _C._current_graph_task_id  # -1 outside of a backward

# A device that is written in Python.
acc = _C._acc
get_privateuse1_backend_name = _C._get_privateuse1_backend_name

# torch.compile.
eval_frame = _C._dynamo.eval_frame
TensorGuards: Any = getattr(_C._dynamo.guards, "TensorGuards", None)
"""Compares the kinds of many tensors in one call; None in releases that have it elsewhere."""
dict_version: Any = getattr(_C._dynamo.guards, "dict_version", None)
"""Returns the version of a dict, which each change of it changes; from Python 3.12 on of no use."""
