"""Symbolic values, which are blocks with Python's operators.

Operators on placed values are computed at the placement.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, NoReturn

import jax
import ml_dtypes
import numpy as np
import torch

from calque.errors import TraceError, at_user_line, user_origin, with_user_frames
from calque.federated.building_blocks import (
    BuildingBlock,
    Call,
    Lambda,
    Literal,
    Placement,
    Reference,
    Selection,
    Struct,
)
from calque.federated.errors import FederatedFieldError, type_error
from calque.federated.tracing.calls import (
    BINARY,
    REFLECTED,
    UFUNCS,
    UNARY,
    PythonOperator,
    checked_index,
    map_call,
    member_type,
    operator_call,
)
from calque.federated.tracing.parameters import require_one_parameter, takes_fields
from calque.federated.tracing.scopes import LambdaScope, fresh, is_open, required, scope
from calque.federated.types import (
    FederatedType,
    FunctionType,
    PlacementLiteral,
    StructType,
    TensorType,
    Type,
    fields_of,
    is_numeric_leaf,
    python_number,
    type_of_value,
)

_NUMPY = "Use Python operators, federated.* or a PyTorch or JAX local function"


class Value:
    """A value of a computation that is being traced.

    It supports the operators of the value that it represents: fields by `[]` and by name, `len`,
    iteration, calls, and arithmetic. All other attributes begin with an underscore, so that fields
    can have any name; `federated.type_of` returns its type.
    """

    __slots__ = ("_block", "_scope")

    def __init__(self, block: BuildingBlock, owner: LambdaScope | None) -> None:
        self._block = block
        self._scope = owner

    def __repr__(self) -> str:
        return f"<Value {self._block} of type {self._block.type}>"

    @with_user_frames
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _selected(self, name)

    @with_user_frames
    def __getitem__(self, key: Any) -> Any:
        kind = member_type(self._block.type)
        if isinstance(kind, StructType) and isinstance(key, slice):
            return tuple(_selected(self, index) for index in range(len(kind))[key])
        if isinstance(kind, StructType):
            return _selected(self, key)
        if isinstance(kind, TensorType):
            if any(isinstance(part, Value) for part in (key if type(key) is tuple else (key,))):
                raise type_error(
                    "a tensor is indexed by a Value, which has no number while it is traced",
                    "Index in a local function that takes both: federated.local(framework='jax').",
                )
            where = checked_index(key, kind)
            return _apply(PythonOperator("index", lambda array: array[where]), self)
        raise type_error(
            f"a value of type {self._block.type} cannot be indexed",
            "Index structs and tensors only.",
        )

    @with_user_frames
    def __len__(self) -> int:
        kind = member_type(self._block.type)
        if isinstance(kind, StructType):
            return len(kind)
        if isinstance(kind, TensorType) and kind.shape and kind.shape[0] is not None:
            return kind.shape[0]
        if isinstance(kind, TensorType) and not kind.shape:
            raise type_error(
                f"a value of type {self._block.type} has no length and no elements",
                "Aggregate values of clients with federated_sum, federated_max or "
                "federated_aggregate."
                if isinstance(self._block.type, FederatedType)
                else "Compute with the value itself.",
            )
        raise type_error(
            f"the length of {self._block.type} is not known while it is traced",
            "Count with federated.sequence_reduce, or give the tensor a size.",
        )

    def __iter__(self) -> Iterator[Any]:
        return iter([self[index] for index in range(len(self))])

    @with_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = self._block.type
        if not isinstance(kind, FunctionType):
            raise type_error(
                f"a value of type {kind} is not a function, but is called", "Call functions only."
            )
        if not args and not kwargs:
            return bind(Call(self._block))
        if len(args) == 1 and not kwargs:
            return bind(Call(self._block, to_block(args[0], kind.parameter)))
        pairs = [*((None, value) for value in args), *kwargs.items()]
        return bind(Call(self._block, _struct(pairs, None, kind.parameter)))

    def __hash__(self) -> int:
        _refuse(
            self, "is used as a key or a member of a set", "Use it in a list, or as a dict's value"
        )

    def __bool__(self) -> bool:
        _refuse(
            self,
            "is used as a condition",
            "Decide in a local function: jax.numpy.where, torch.where",
        )

    def __float__(self, *digits: object) -> NoReturn:
        remedy = "Compute with the value itself, or in a local function (federated.local)"
        _refuse(self, "is converted to a number", remedy)

    __int__: Callable[..., NoReturn] = __float__
    __index__: Callable[..., NoReturn] = __float__
    __complex__: Callable[..., NoReturn] = __float__
    __round__: Callable[..., NoReturn] = __float__
    __trunc__: Callable[..., NoReturn] = __float__

    def __copy__(self) -> "Value":
        return self

    def __deepcopy__(self, memo: object) -> "Value":
        return self

    def __reduce__(self) -> str:
        _refuse(self, "is pickled", "Pickle arrays, such as the results of a call")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self, "is converted to an array", _NUMPY)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy's operators are this class's operators, also with an array on the left."""
        name = UFUNCS.get(ufunc)
        if name is None or method != "__call__" or kwargs:
            _refuse(self, f"is passed to numpy.{ufunc.__name__}", _NUMPY)
        first, *others = inputs
        if isinstance(first, Value):
            return getattr(first, f"__{name}__")(*others)
        return getattr(others[0], f"__{REFLECTED.get(name, f'r{name}')}__")(first)

    def __array_function__(self, function: Any, *args: Any) -> NoReturn:
        _refuse(self, f"is passed to numpy.{function.__name__}", _NUMPY)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        name = getattr(function, "__name__", "a function")
        raise type_error(
            f"a value of a federated computation is passed to torch's {name}",
            "Use Python operators, federated.* or a local function (federated.local).",
        )

    def __format__(self, spec: str) -> str:
        if spec:
            _refuse(self, f"is formatted with {spec!r}", "Compute with the value itself")
        return repr(self)

    def __setattr__(self, name: str, value: object) -> None:
        if name in Value.__slots__:
            object.__setattr__(self, name, value)
        else:
            _refuse(
                self,
                f"cannot be assigned the field {name!r}",
                "Make a new struct: a dict or a tuple",
            )

    def __setitem__(self, key: object, value: object) -> None:
        _refuse(self, "cannot be assigned an item", "Make a new struct: a dict or a tuple")

    def __delitem__(self, key: object) -> None:
        _refuse(self, "cannot have an item deleted", "Make a new struct: a dict or a tuple")

    def __contains__(self, value: object) -> bool:
        _refuse(self, "is used with `in`", "Decide in a local function")


@with_user_frames
def type_of(value: object) -> Type:
    """Returns the type of a symbolic value, an array, or a container of these.

    >>> import numpy as np
    >>> print(type_of({"a": np.zeros(2, np.float32)}))
    <a=float32[2]>
    """
    if isinstance(value, Value):
        return value._block.type
    kind = getattr(value, "type_signature", None)
    return kind if isinstance(kind, Type) else type_of_value(value)


def bind(call: Call, what: str = "a value") -> Value:
    """Returns the result of a call, bound to a name in the current scope.

    Args:
        call: the call, whose `origin` is set to the user's line.
        what: the name of the function, for the error outside computations.
    """
    owner = required(what)
    return Value(owner.bind(_at_this_line(call)), owner)


def _at_this_line(call: Call) -> Call:
    return Call(call.function, call.argument, user_origin())


def to_block(value: Any, hint: Type | None = None) -> BuildingBlock:
    """Returns the block for a value, a computation, a placement, an array, or a container of these.

    Args:
        value: the user's value.
        hint: the expected type, if any, for which a Python function is traced.

    Raises:
        FederatedTypeError: it is not a value, or belongs to a computation that has ended.
    """
    if isinstance(value, Value):
        if value._scope is not None and not is_open(value._scope):
            raise type_error(
                f"a value of type {value._block.type} is used outside the function that created it",
                "Return it from that function, and use the result of the call.",
            )
        return value._block
    if isinstance(value, BuildingBlock):
        return value
    if isinstance(value, PlacementLiteral):
        return Placement(value)
    if hasattr(value, "__building_block__"):
        return value.__building_block__(hint.parameter if isinstance(hint, FunctionType) else None)
    if is_numeric_leaf(value):
        return Literal(_known(value, hint))
    if isinstance(value, Mapping):
        return _struct(list(value.items()), dict, hint)
    if (fields := fields_of(value)) is not None:
        return _struct(list(fields.items()), type(value), hint)
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", getattr(value, "names", [None] * len(value)))
        return _struct(list(zip(names, value, strict=True)), type(value), hint)
    if callable(value) and isinstance(hint, FunctionType):
        return trace(value, hint.parameter)
    if value is None:
        raise type_error("None is used as a value", "Return and use arrays and numbers.")
    raise type_error(
        f"{value!r} cannot be a value of a federated computation",
        "Use arrays, numbers, other values, and dicts, lists and tuples of them.",
    )


def trace(function: Callable[..., Any], parameter: Type | None) -> Lambda:
    """Traces a Python function of one argument, or of none, to a lambda.

    A function with several parameters is called with the fields of a struct.
    """
    with scope() as inner:
        if parameter is None:
            return Lambda(None, None, inner.closed(to_block(function())))
        name = fresh("arg")
        value = Value(Reference(name, parameter), inner)
        args = list(value) if takes_fields(function, parameter) else [value]
        if len(args) == 1:
            require_one_parameter(function, parameter)
        return Lambda(name, parameter, inner.closed(to_block(function(*args))))


def _struct(
    pairs: SequenceOf[tuple[str | None, Any]], container: object, hint: Type | None
) -> Struct:
    hints: list[Type | None] = [None] * len(pairs)
    if isinstance(hint, StructType) and len(hint) == len(pairs):
        hints = list(hint)
    blocks = ((n, to_block(v, h)) for (n, v), h in zip(pairs, hints, strict=True))
    return Struct(tuple(blocks), container)


def _known(value: Any, hint: Type | None) -> np.ndarray:
    """Returns a number or an array as a NumPy array, Python numbers in the requested dtype."""
    if isinstance(value, jax.core.Tracer):
        raise type_error(
            f"an array of type {type_of_value(value)} that JAX traces is used in a federated "
            "computation",
            "Pass it as an argument, also to a local function.",
        )
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.numpy() if value.dtype != torch.bfloat16 else _bfloat16(value)
    kind = type_of_value(value)
    assert isinstance(kind, TensorType)
    dtype = kind.dtype
    if isinstance(value, bool | int | float | complex) and isinstance(hint, TensorType):
        if np.can_cast(kind.dtype, hint.dtype, "same_kind"):
            dtype = hint.dtype
    return np.asarray(value, dtype)


def _bfloat16(value: torch.Tensor) -> np.ndarray:
    return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _selected(value: Value, key: str | int) -> Value:
    kind = value._block.type
    if not isinstance(member_type(kind), StructType):
        raise type_error(
            f"a value of type {kind} has no field {key!r}",
            "Select fields from structs only.",
            FederatedFieldError,
        )
    if isinstance(kind, FederatedType):
        name = fresh("arg")
        body = Selection(Reference(name, kind.member), key)
        return bind(map_call(Lambda(name, kind.member, body), value._block))
    return Value(Selection(value._block, key), value._scope)


def _apply(op: PythonOperator, *values: Any) -> Value:
    """Returns an operator method; a second operand may be anything that `to_block` accepts."""
    known = {id(value): to_block(value) for value in values if isinstance(value, Value)}
    blocks = [known.get(id(value)) or to_block(value) for value in values]
    return bind(operator_call(op, blocks), f"the operator {op.name!r}")


def _binary(name: str, reflected: bool) -> Callable[..., Value]:
    @with_user_frames
    def method(self: Value, other: object, *modulus: object) -> Value:
        if modulus:  # `pow(x, y, z)`
            _refuse(self, "is raised to a power with a modulus", "Write (x ** y) % z")
        if (number := python_number(other)) is not None:
            op = PythonOperator(name, BINARY[name], (reflected, repr(number), number))
            return _apply(op, self)
        op = PythonOperator(name, BINARY[name])
        return _apply(op, other, self) if reflected else _apply(op, self, other)

    return method


def _unary(name: str) -> Callable[[Value], Value]:
    return with_user_frames(lambda self: _apply(PythonOperator(name, UNARY[name]), self))


for _name in BINARY:
    setattr(Value, f"__{_name}__", _binary(_name, False))
    if _name not in REFLECTED:
        setattr(Value, f"__r{_name}__", _binary(_name, True))
for _name in UNARY:
    setattr(Value, f"__{_name}__", _unary(_name))


@with_user_frames
def _refuse(value: Value, what: str, remedy: str) -> NoReturn:
    """Raise for an operation that needs the value itself, which is not known while tracing."""
    raise TraceError(at_user_line(f"a value of type {value._block.type} {what}.\n{remedy}."))
