"""The names of PyTorch's extension that calque uses, each with its purpose.

Few of them are public. Check this module first for a new version; a linter rule forbids `torch._C`
in other modules. Some have a public form that is slower than the operators around it
(`torch.is_grad_enabled` calls the function modes).
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._C._acc as acc  # a device implemented in Python

_C = torch._C
extension = _C  # so that traces can patch its functions

# Operators and their schemas.
Argument = _C.Argument
FunctionSchema = _C.FunctionSchema
VariableFunctions = _C._VariableFunctions  # the namespace of torch functions
get_schema: Callable[[str, str], FunctionSchema] = _C._get_schema
jit_get_schemas_for_operator: Callable[[str], list[FunctionSchema]] = (
    _C._jit_get_schemas_for_operator
)
storage_use_count: Callable[[int], int] = _C._storage_Use_Count  # takes `_cdata`
current_autograd_node: Callable[[], Any] = _C._current_autograd_node  # that of the running backward
next_autograd_node: Callable[[], int] = _C._autograd._get_sequence_nr  # the next sequence number
dispatch_get_all_op_names: Callable[[], list[str]] = _C._dispatch_get_all_op_names

# The kernels of the CPU.
ConvBackend = _C._ConvBackend
select_conv_backend: Callable[..., Any] = _C._select_conv_backend  # what computes a convolution
get_num_threads: Callable[[], int] = _C.get_num_threads
# The precision of a kind of operator (such as "matmul") on a kind of device.
fp32_precision: Callable[[str, str], str] = _C._get_fp32_precision_getter
get_flash_sdp_enabled: Callable[[], bool] = _C._get_flash_sdp_enabled

# The dispatcher.
DispatchKey = _C.DispatchKey
DispatchKeySet = _C.DispatchKeySet
AutoDispatchBelowAutograd = _C._AutoDispatchBelowAutograd
ExcludeDispatchKeyGuard = _C._ExcludeDispatchKeyGuard
dispatch_keys: Callable[[torch.Tensor], DispatchKeySet] = _C._dispatch_keys
dispatch_tls_is_dispatch_key_excluded: Callable[[DispatchKey], bool] = (
    _C._dispatch_tls_is_dispatch_key_excluded
)
dispatch_has_kernel_for_dispatch_key: Callable[[str, DispatchKey | str], bool] = (
    _C._dispatch_has_kernel_for_dispatch_key
)
dispatch_get_registrations_for_dispatch_key: Callable[[str], list[str]] = (
    _C._dispatch_get_registrations_for_dispatch_key
)
dispatch_has_computed_kernel_for_dispatch_key: Callable[[str, DispatchKey | str], bool] = (
    _C._dispatch_has_computed_kernel_for_dispatch_key
)

# Modes of the thread.
DisableTorchFunction: Callable[[], AbstractContextManager[None]] = _C.DisableTorchFunction
is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = (
    _C._is_alias_of  # whether they share a storage
)
has_storage: Callable[[torch.Tensor], bool] = _C._has_storage
TorchDispatchModeKey = _C._TorchDispatchModeKey
get_dispatch_mode: Callable[[TorchDispatchModeKey | None], Any] = _C._get_dispatch_mode
len_torch_dispatch_stack: Callable[[], int] = _C._len_torch_dispatch_stack
len_torch_function_stack: Callable[[], int] = _C._len_torch_function_stack
is_grad_enabled: Callable[[], bool] = _C.is_grad_enabled
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
disable_autocast: Callable[[], AbstractContextManager[None]] = _C._DisableAutocast
is_any_autocast_enabled: Callable[[], bool] = _C._is_any_autocast_enabled
get_default_dtype: Callable[[], torch.dtype] = _C.get_default_dtype
get_mkldnn_enabled: Callable[[], bool] = _C._get_mkldnn_enabled
set_mkldnn_enabled: Callable[[bool], None] = _C._set_mkldnn_enabled
functorch = _C._functorch  # whether a function transform is running

# Tensors and their memory.
Generator = _C.Generator
ScriptMethod = _C.ScriptMethod
StorageBase = _C.StorageBase
WeakTensorRef = _C._WeakTensorRef
increment_version: Callable[[Iterable[torch.Tensor]], None] = _C._increment_version
swap_tensor_impl: Callable[[torch.Tensor, torch.Tensor], Any] = _C._swap_tensor_impl
from_dlpack: Callable[[Any], torch.Tensor] = _C._from_dlpack
untyped_storage: Callable[..., Any] = _C.TensorBase.untyped_storage
data_ptr: Callable[[torch.Tensor], int] = _C.TensorBase.data_ptr
to_dlpack: Callable[..., Any] = _C._to_dlpack

# Gradients.
autograd = _C._autograd  # hooks of saved tensors, creation of views
functions = _C._functions  # errors raised in the backward
current_graph_task_id: Callable[[], int] = _C._current_graph_task_id  # -1 outside of a backward

# A device implemented in Python.
get_privateuse1_backend_name: Callable[[], str] = _C._get_privateuse1_backend_name

# torch.compile.
TensorGuards: Any = getattr(_C._dynamo.guards, "TensorGuards", None)
"""Compares the metadata of many tensors in one call; None in releases that define it elsewhere."""
dict_version: Any = getattr(_C._dynamo.guards, "dict_version", None)
"""Returns the version of a dict, which changes with each write; useless from Python 3.12 on."""
