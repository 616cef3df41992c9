"""Abstract values: what is known of a node's value before it is computed.

A FakeTensor has a shape, a dtype and a device but no data; PyTorch's own kernels for it compute an
operation's result, and raise errors for invalid arguments.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import Node, map_arg

from calque.state import call_watched
from calque.tracing.abstract.fakes import AbstractMode
from calque.tracing.abstract.interning import Uncertain, geometry, key_of_call, key_of_module
from calque.tracing.abstract.memory import remembered
from calque.tracing.core.active import suspended
from calque.tracing.graph.purity import has_effect
from calque.upstream import torch_c
from calque.upstream.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    pytree,
    tree_leaves,
)

UNKNOWN = object()
_UNKNOWABLE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)
_SHAPED_BY_VALUES = (
    "NestedTensorImpl doesn't support",
    "its data is not allocated yet",  # from tensor_split, which reads the indices to split at
)
_FROM_ELEMENTS = frozenset(("tensor", "as_tensor", "asarray", "new_tensor", "new"))
_STORED = frozenset(
    (
        *("values", "indices", "_values", "_indices", "_nnz"),
        *("crow_indices", "col_indices", "ccol_indices", "row_indices"),
    )
)
"""The parts of a sparse tensor, whose sizes depend on values."""
RESHAPING = frozenset(("resize_", "resize_as_", "set_"))
"""Methods that change a tensor's shape."""
_RUNNABLE = ("torch", "_operator", "operator", "math")


class AbstractValues:
    """Computes `node.meta["val"]` from those of the node's inputs.

    Args:
        resolve: returns the object that a `get_attr` or `call_module` names.
    """

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        known = remembered()
        self.mode: AbstractMode = known.mode
        self._resolve = resolve
        self._modules: dict[torch.nn.Module, torch.nn.Module] = {}
        self._members, self._results, self._known = known.members, known.results, known.calls
        self._module_keys: dict[torch.nn.Module, Any] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the abstract value of a real tensor."""
        with torch_c.DisableTorchFunction(), suspended():
            return self.mode.from_tensor(tensor, static_shapes=True)

    def of_member(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the abstract value of a parameter or buffer; members of one geometry share it."""
        try:
            with torch_c.DisableTorchFunction():
                key = geometry(tensor)
        except Uncertain:
            return self.of(tensor)
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = self._like(tensor) if tensor.is_leaf else self.of(tensor)
        return found

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Like `of`, but several times as fast,
        for a leaf that is described by its geometry alone.
        """
        with torch_c.DisableTorchFunction(), suspended():
            meta = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            found = FakeTensor(self.mode, meta, tensor.device)
            found.requires_grad = tensor.requires_grad
        if isinstance(tensor, torch.nn.Parameter):
            found._is_param = True
        return found

    def made_from(self, facts: Any) -> torch.Tensor:
        """Returns an abstract value with the shape, stride, dtype, device and `requires_grad` of
        `facts`.
        """
        with torch_c.DisableTorchFunction(), suspended():
            meta = torch.empty_strided(facts.shape, facts.stride, dtype=facts.dtype, device="meta")
            made = FakeTensor(self.mode, meta, facts.device)
            may = facts.dtype.is_floating_point or facts.dtype.is_complex
            made.requires_grad = facts.requires_grad and may
        return made

    def compute(self, node: Node) -> Any:
        """Returns the node's value: a FakeTensor, a container of them, a Python value, or UNKNOWN.

        Equal calls share one result, so nothing may change it: calls with side effects get abstract
        values of their own.

        Raises:
            Exception: the error that PyTorch raises for these shapes and dtypes.
        """
        value = self._found(node)
        if value is UNKNOWN:
            for reshaped in reshaped_by(node):
                reshaped.meta.pop("val", None)
        return value

    def _found(self, node: Node) -> Any:
        sources = node.all_input_nodes
        for source in sources:
            if "val" not in source.meta:
                return _unknown(node)
        if node.op != "call_module" and has_effect(node):
            with torch_c.DisableTorchFunction(), suspended(), self.mode:
                for source in sources:
                    source.meta["val"] = pytree.tree_map_only(
                        torch.Tensor, _private, source.meta["val"]
                    )
            return self._compute(node)
        key = self._key(node)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            return known[0]
        value = self._compute(node)
        if key is not None and value is not UNKNOWN and not _has_data(value):
            inputs = [source.meta["val"] for source in sources]
            value = self._shared(value, inputs)
            # The key contains the identities of the inputs, so they must stay alive.
            self._known[key] = value, inputs
        return value

    def _shared(self, value: Any, inputs: list[Any]) -> Any:
        """Returns a shared abstract value for new tensors of this geometry, unless it is a view.

        It is none of the inputs, because these are the results of calls that return an argument.
        """
        if not _has_storage(value):
            return value
        leaves = tree_leaves(inputs)
        with torch_c.DisableTorchFunction():
            storage = value.untyped_storage()._cdata
            for leaf in leaves:
                if _has_storage(leaf) and leaf.untyped_storage()._cdata == storage:
                    return value
            if value._is_view() or (value.is_leaf and value.requires_grad):
                return value
            try:
                key = geometry(value)
            except Uncertain:
                return value
        made = self._results.setdefault(key, [])
        for one in made:
            if all(one is not leaf for leaf in leaves):
                return one
        made.append(value)
        return value

    def _key(self, node: Node) -> Any:
        """Returns a key of everything that the value depends on; None if this is not known."""
        target: Any = node.target
        if torch_c.is_any_autocast_enabled():
            return None
        try:
            if node.op != "call_module":
                return None if hasattr(target, "runs_abstractly") else key_of_call(node, None)
            module = self._resolve(target)
            key = self._module_keys.get(module)
            if key is None:
                with torch_c.DisableTorchFunction():
                    key = _has_hooks(module) or key_of_module(module)
                self._module_keys[module] = key
            if key is True:
                return None
            return key_of_call(node, key)
        except TypeError:
            return None

    def _compute(self, node: Node) -> Any:
        run = self._runner(node)
        if run is None:
            return UNKNOWN
        args = map_arg(node.args, _value)
        kwargs = map_arg(node.kwargs, _value)
        if _name(node) in _FROM_ELEMENTS and _elements(args):
            return self._from_elements(run, args, dict(kwargs))
        if _name(node) in _STORED and any(map(_is_sparse, args)):
            return UNKNOWN
        try:
            with torch_c.DisableTorchFunction(), suspended(), self.mode:
                if hasattr(run, "runs_abstractly"):
                    return call_watched(run, *args, **kwargs)
                return run(*args, **kwargs)
        except _UNKNOWABLE:
            return UNKNOWN
        except RuntimeError as error:
            if any(text in str(error) for text in _SHAPED_BY_VALUES):
                return UNKNOWN
            raise

    def _from_elements(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Returns a new tensor whose elements are other tensors, which PyTorch reads."""
        device = kwargs.pop("device", None)
        if device is None and isinstance(args[0], torch.Tensor):
            device = args[0].device
        with torch_c.DisableTorchFunction(), suspended():
            made = run(*pytree.tree_map_only(torch.Tensor, _zeros_like, args), **kwargs)
        found = self.of(made)
        with torch_c.DisableTorchFunction(), suspended(), self.mode:
            return found if device is None else found.to(device)

    def _runner(self, node: Node) -> Callable[..., Any] | None:
        target: Any = node.target
        if node.op == "call_method":
            return lambda self, *args, **kwargs: getattr(self, target)(*args, **kwargs)
        if node.op == "call_module":
            module = self._resolve(target)
            known = type(module).__module__.startswith("torch.nn") and not _has_hooks(module)
            return self._without_data(module) if known else None
        if target is torch.autograd.grad:
            return _gradients
        if node.op == "call_function":
            home = getattr(target, "__module__", None) or "torch"
            known = target is getattr or home.split(".")[0] in _RUNNABLE
            return target if known or hasattr(target, "runs_abstractly") else None
        return None

    def _without_data(self, module: torch.nn.Module) -> torch.nn.Module:
        """Returns a copy with abstract tensors,
        because the module's own buffers must not change.
        """
        copied = self._modules.get(module)
        if copied is None:
            copied = self._modules[module] = module.__new__(type(module))
            attributes = {name: self._lists(value) for name, value in vars(module).items()}
            for kind in ("_parameters", "_buffers"):
                tensors = attributes[kind].items()
                attributes[kind] = {n: t if t is None else self.of_member(t) for n, t in tensors}
            inner = attributes["_modules"].items()
            attributes["_modules"] = {
                n: m if m is None else self._without_data(m) for n, m in inner
            }
            vars(copied).update(attributes)
        return copied

    def _lists(self, value: object) -> Any:
        """Replaces the lists of weights that recurrent layers keep."""
        if isinstance(value, list) and value and all(isinstance(t, torch.Tensor) for t in value):
            return [self.of_member(t) for t in value]
        return value


def reshaped_by(node: Node) -> list[Node]:
    """Returns the tensors that a call writes to and whose shape it may change.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> resized, doubled = graph.call_method("resize_", (x, 3)), graph.call_method("mul_", (x, 2))
    >>> reshaped_by(resized) == [x], reshaped_by(doubled)
    (True, [])
    """
    given: Any = node.kwargs.get("out")
    if _name(node) in RESHAPING or (node.target is setattr and node.args[1] == "data"):
        given = node.args[0]
    return [part for part in tree_leaves(given) if isinstance(part, Node)]


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _elements(args: tuple[Any, ...]) -> bool:
    """Returns True if tensors are among the elements of a new tensor, including those in
    sequences.
    """
    data = next((arg for arg in args if isinstance(arg, (list, tuple))), None)
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(data))


def _zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the same shape and dtype that has elements."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _unknown(node: Node) -> Any:
    """Returns UNKNOWN for a result; for gradients, as many as there are inputs."""
    if node.target is not torch.autograd.grad or not isinstance(node.args[1], tuple | list):
        return UNKNOWN
    return (UNKNOWN,) * len(node.args[1])


def _gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """Like `torch.autograd.grad`, which does not work with shared abstract values."""
    wanted = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if allow_unused and not materialize_grads:
        return (UNKNOWN,) * len(wanted)  # a gradient may be None
    many = tree_leaves(grad_outputs)[0].shape[:1] if is_grads_batched else ()
    return tuple(
        torch.empty_like(tensor).expand(*many, *tensor.shape).clone().requires_grad_(create_graph)
        if many
        else torch.empty_like(tensor, requires_grad=create_graph)
        for tensor in wanted
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def _has_data(value: object) -> bool:
    """Returns True if PyTorch also knows the elements, as in `torch.tensor(3)`."""
    leaves = tree_leaves(value)
    return any(getattr(leaf, "constant", None) is not None for leaf in leaves)


def _private(value: torch.Tensor) -> torch.Tensor:
    """Returns a separate tensor object with the same storage, geometry and place in autograd."""
    copied = value.detach()
    if not value.requires_grad:
        return copied
    copied.requires_grad_()
    # DelayedError is the one autograd function whose result is neither a leaf nor a view.
    return copied if _is_leaf(value) else torch_c.functions.DelayedError("", 1)(copied)


def _is_leaf(value: torch.Tensor) -> bool:
    try:
        return value.is_leaf
    except RuntimeError:  # a view made without gradients, of a tensor that was written to since
        return True


def _value(node: Node) -> Any:
    return node.meta["val"]


def _is_sparse(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout != torch.strided


def _has_storage(value: object) -> bool:
    """Returns True for a tensor with a storage; sparse tensors consist of other tensors."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided
