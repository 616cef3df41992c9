"""The private names of PyTorch's Python modules that calque uses, each with its purpose.

Check this module and `torch_c` first for a new version of PyTorch; a linter rule and a test forbid
such names in other modules. `import torch` loads all of this; slower imports are in `torch_compile`
and `torch_distributed`. Names that calque or PyTorch may assign are used through their module.
"""

import functools
import inspect
import os
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import _add_batch_dim as add_batch_dim  # of vmap, for batched gradients
from torch import _assert as check  # asserts in graphs of torch.fx
from torch import _assert_async as assert_async
from torch import _from_functional_tensor as from_functional_tensor
from torch import _functionalize_commit_update as functionalize_commit_update
from torch import (
    _functionalize_mutation_counter as functionalize_mutation_counter,  # counts writes
)
from torch import _functionalize_replace as functionalize_replace
from torch import _is_functional_tensor as is_functional_tensor
from torch import _neg_view as neg_view  # negated lazily, like the imaginary part of a conjugate
from torch import _remove_batch_dim as remove_batch_dim
from torch import _sync as sync_functional  # carries out writes to views
from torch import _tensor_str as tensor_str  # `_str`, which prints tensors
from torch import compiler  # `_is_compiling_flag`, what `is_compiling()` returns
from torch._decomp import decomposition_table  # for operators without a rule
from torch._export import utils as export_utils  # `_materialize_cpp_cia_ops`, which takes long
from torch._functorch import eager_transforms, vmap  # the nesting level of transforms
from torch._functorch.pyfunctorch import (
    FunctionalizeInterpreter,
    retrieve_all_functorch_interpreters,
    temporarily_pop_interpreter_stack,  # leaves transforms
)
from torch._guards import TracingContext  # AOTAutograd's metadata of the inputs
from torch._higher_order_ops import (
    utils as higher_order_utils,  # `_hop_compile_and_call`, `potential_input_alias_or_mutation`
)
from torch._higher_order_ops.auto_functionalize import (
    get_mutable_args,  # the written arguments of an operator
    read_view_information_from_args,
)
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._jit_internal import boolean_dispatched  # the functions behind `max_pool2d`
from torch._library.custom_ops import OPDEFS  # the user's own operators
from torch._library.fake_class_registry import FakeScriptObject  # constants of graphs
from torch._library.opaque_object import is_opaque_reference_type, is_opaque_value_type
from torch._library.simple_registry import singleton as fake_registry  # fake kernels
from torch._ops import HigherOrderOperator, OperatorBase, OpOverload, OpOverloadPacket
from torch._prims_common import clone_preserve_strides
from torch._subclasses import (
    fake_impls,  # `op_implementations_dict`, results without values
    fake_tensor,  # `log`, which traces silence
)
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,  # tells operators that fake tensors are on "meta"
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctorchFunctionalizeAPI
from torch.amp import _enter_autocast as enter_autocast  # as functions, for graphs
from torch.amp import _exit_autocast as exit_autocast
from torch.autograd import _force_original_view_tracking as force_original_view_tracking
from torch.autograd import _get_sequence_nr as get_sequence_nr  # a node's metadata
from torch.autograd import _profiler_enabled as profiler_enabled
from torch.autograd import forward_ad  # `_current_level`: whether forward mode is active
from torch.autograd import graph as autograd_graph  # `_engine_run_backward`
from torch.distributions import Distribution  # `_validate_args`, a default of the process
from torch.fx import _symbolic_trace as fx_symbolic_trace  # functions registered by `torch.fx.wrap`
from torch.fx import traceback as fx_traceback  # preserves metadata of replayed nodes
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx._lazy_graph_module import _make_graph_module as make_graph_module
from torch.fx._symbolic_trace import PH, PHBase
from torch.fx._symbolic_trace import _assert_is_none as assert_is_none
from torch.fx._symbolic_trace import _ConstantAttributeType as ConstantAttributeType
from torch.fx._symbolic_trace import _proxyable_classes as fx_proxyable_classes
from torch.fx.experimental.sym_node import SymNode  # the type that C++ expects
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo
from torch.fx.graph_module import _copy_attr as copy_attr
from torch.fx.node import _get_qualified_name as get_qualified_name
from torch.fx.proxy import _COPY_META_FIELDS as COPY_META_FIELDS
from torch.nn.modules import module as nn_module  # the global hooks
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as DropoutNd
from torch.nn.utils import parametrize  # `_cache_enabled`: within `parametrize.cached()`
from torch.nn.utils.stateless import _reparametrize_module as reparametrize_module
from torch.overrides import _get_current_function_mode_stack as get_current_function_mode_stack
from torch.overrides import _pop_mode as pop_mode
from torch.overrides import _push_mode as push_mode
from torch.utils import _python_dispatch as python_dispatch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack as get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten
from torch.utils._traceback import CapturedTraceback  # stacks without source text
from torch.utils.backend_registration import (
    _setup_privateuseone_for_python_backend as setup_privateuseone_for_python_backend,
)

# Runs the hooks around a step; the optimizer is its variable `self`.
HOOKED_STEP: CodeType = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
Optimizer = torch.optim.Optimizer  # `_process_value_according_to_param_policy`, which loads state
Module = torch.nn.Module  # `_apply`, which moves a module; `_call_impl`, whose frame names a layer
InductorWrapper = torch._TorchCompileInductorWrapper  # torch.compile's default
VariableFunctions = torch._VF  # recurrent layers, as PyTorch's modules call them

make_subclass: Callable[..., Any] = torch.Tensor._make_subclass


_GUARDS = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "guards.py")


def is_guard(code: CodeType) -> bool:
    """Returns True for a guard of Dynamo in Python; C++ treats an exception in it as False."""
    name = code.co_qualname
    if name.startswith("___make_guard_fn.<locals>."):  # a guard of shapes
        return True
    return name.startswith("GuardBuilder.") and "<locals>" in name and code.co_filename == _GUARDS


def keep_dynamo_out(trace_rules: Any, package: str) -> None:
    """Make Dynamo call the functions of a package, and never compile their code.

    Args:
        trace_rules: the module `torch._dynamo.trace_rules`, which takes seconds to import.
        package: the name of the package.
    """
    trace_rules.add(package)


def keep_dynamo_out_of_frames(trace_rules: Any, package: str, folder: str) -> None:
    """Make Dynamo compile a package's code only as part of code that calls it, like PyTorch's own.

    Args:
        trace_rules: the module `torch._dynamo.trace_rules`, which takes seconds to import.
        package: the name of the package.
        folder: its folder.
    """
    inlined = getattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED", None)
    if isinstance(inlined, set):  # without it, Dynamo could only leave the calls alone as well
        inlined.add(trace_rules._as_posix_path(os.path.join(folder, "")))
        trace_rules.add(package)


def judge_methods_by_their_functions(trace_rules: Any) -> None:
    """Make Dynamo, which asks for the file of a module's `forward`, look at the function within
    where `forward` is a method of an object that wraps one. It would raise AssertionError.

    Args:
        trace_rules: the module `torch._dynamo.trace_rules`, which takes seconds to import.
    """
    theirs = trace_rules.check

    @functools.wraps(theirs)
    def judged(obj: Any, *args: Any, **kwargs: Any) -> bool:
        if isinstance(obj, MethodType) and not isinstance(obj.__func__, FunctionType):
            within = inspect.unwrap(obj.__func__)
            obj = within if isinstance(within, FunctionType) else obj
        return theirs(obj, *args, **kwargs)

    trace_rules.check = judged


def let_dynamo_call(trace_rules: Any, function: Callable[..., Any]) -> None:
    """Make Dynamo put calls of a function into its graphs (`torch._dynamo.nonstrict_trace`).

    Args:
        trace_rules: the module `torch._dynamo.trace_rules`, which takes seconds to import.
        function: a function that takes and returns pytrees of tensors and plain values.
    """
    for known in (trace_rules._allowed_callable_ids, trace_rules._nonstrict_trace_callable_ids):
        known.add(id(function))
        weakref.finalize(function, known.remove, id(function)).atexit = False
