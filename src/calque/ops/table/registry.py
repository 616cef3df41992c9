"""The op table: one pure JAX function for each operator, keyed by the operator's name.

A rule has the ATen operator's own signature, over `jax.Array`s and Python values:

- tensors are arrays (or Python numbers, if PyTorch accepts a number for a tensor);
- dtypes are numpy dtypes; `device`, `layout` and `pin_memory` never reach a rule;
- a random rule takes a JAX key before the operator's own arguments;
- a rule that changes some of its arguments (`mutates`) returns its results followed by the new
  values of those arguments.

A rule may not depend on the values in an array (but see `Rule.data_dependent`). The in-place and
`out=` forms of an operator are derived from its functional rule.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import CO_VARARGS, CO_VARKEYWORDS, signature
from keyword import iskeyword
from typing import Any, TypeVar, Unpack

from calque.ops.table.facts import Known, canonical, facts

_VARIADIC = CO_VARARGS | CO_VARKEYWORDS

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Rule:
    """The meaning of one operator, and how its arguments are passed.

    Attributes:
        name: `namespace::name.overload`, without an overload `default`.
        function: the pure JAX function.
        family: the module that defines the rule.
        static: `Scalar` parameters that the rule needs as Python values.
        dynamic: `int` or `float` parameters that change often and are passed as traced numbers, so
            that a new value needs no new executable.
        mutates: parameters whose new values follow the results.
        random: whether the rule takes a JAX key first. If this depends on arguments other than
            tensors, a function of the arguments; the key is None if it returns False
            (`calque.device.kernels.composites` calls such rules).
        data_dependent: whether the shape of a result depends on values; such a rule runs on
            concrete arrays only and cannot be part of a compiled program. If this depends on
            arguments other than tensors, a function of the arguments.
        check: called before the rule with the arguments by name, as PyTorch passed them; raises
            PyTorch's errors for bad values of `dynamic` parameters.
    """

    name: str
    function: Callable[..., Any]
    family: str
    static: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    mutates: tuple[str, ...] = ()
    random: bool | Callable[..., bool] = False
    data_dependent: bool | Callable[..., bool] = False
    check: Check | None = None

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the operator's own parameters, in order.

        A name that is a Python keyword has an underscore at the end (`from_`).
        """
        code = getattr(self.function, "__code__", None)
        if code is None or code.co_flags & _VARIADIC:
            spelled: Any = signature(self.function).parameters
        else:  # the same as signature(), which takes a fifth of the import
            spelled = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = tuple(name.removesuffix("_") for name in spelled)
        return names[1:] if self.random else names

    def keyword(self, name: str) -> str:
        """Returns the name of an operator's parameter in the rule's function."""
        return f"{name}_" if iskeyword(name) else name


RULES: dict[str, Rule] = {}


def op(
    *names: str,
    static: tuple[str, ...] = (),
    dynamic: tuple[str, ...] = (),
    mutates: tuple[str, ...] = (),
    random: bool | Callable[..., bool] = False,
    data_dependent: bool | Callable[..., bool] = False,
    check: Check | None = None,
    **known: Unpack[Known],
) -> Callable[[F], F]:
    """Add a function to the table as the rule of each named operator.

    >>> from calque.ops.table.registry import op
    >>> @op("aten::add.Tensor")                                              # doctest: +SKIP
    ... def add(x, y, *, alpha=1): ...

    Args:
        *names: the operators, as `add.Tensor` (namespace `aten`) or `namespace::name.overload`.
        static: see `Rule`, also for the other parameters.
        **known: facts about the operators (see `calque.ops.table.facts`).
    """

    def register(function: F) -> F:
        family = function.__module__.rpartition(".")[2]
        for name in names:
            name = canonical(name)
            _check_new(name, function)
            RULES[name] = Rule(
                name,
                function,
                family,
                frozenset(static),
                frozenset(dynamic),
                mutates,
                random,
                data_dependent,
                check,
            )
        facts(*names, **known)
        return function

    return register


def _check_new(name: str, function: Callable[..., Any]) -> None:
    """Raise ValueError for a second built-in rule, which would replace the first silently."""
    earlier = RULES.get(name)
    ours = f"{__name__.partition('.')[0]}."
    if earlier and all(f.__module__.startswith(ours) for f in (earlier.function, function)):
        raise ValueError(f"{name} already has a rule, in {earlier.function.__module__}")


def find(name: str) -> Rule | None:
    """Returns the rule of an operator, or None."""
    return RULES.get(canonical(name))


def names() -> Iterator[str]:
    """Returns the names in the table, sorted."""
    return iter(sorted(RULES))
