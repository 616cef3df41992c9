"""`_foreach_*`: a pointwise rule over lists of tensors, as one executable for the whole list.

Each operator is a row of the table, with its rule and overloads. The functions are generated from
the rows.
"""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

# These imports add the rules that are repeated over lists to the table.
from calque.ops.reduce import extrema  # noqa: F401
from calque.ops.reduce.reduction import powsum, vector_norm, vector_norm_condition
from calque.ops.table.conditions import check
from calque.ops.table.facts import facts
from calque.ops.table.number_range import HoldsEachLimit
from calque.ops.table.promotion import is_complex
from calque.ops.table.registry import find, op

UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "zero",
    "max",
]

_ARRAY = object()
_PLAIN = frozenset((bool, int, float, complex, type(None)))
PACKED = "scalars"
"""The parameter of one number for each tensor, in a tensor that PyTorch demands on the CPU."""

# From each operator to its rule and, by overload, the parameters after `self`. A star marks lists.
TABLE: dict[str, tuple[str, dict[str, str]]] = {
    "add": (
        "add.Tensor",
        {"List": "*other alpha=1", "Scalar": "scalar", "ScalarList": "*scalars",
         "Tensor": "other alpha=1"},
    ),
    "sub": (
        "sub.Tensor",
        {"List": "*other alpha=1", "Scalar": "scalar", "ScalarList": "*scalars"},
    ),
    "mul": (
        "mul.Tensor",
        {"List": "*other", "Scalar": "scalar", "ScalarList": "*scalars", "Tensor": "other"},
    ),
    "div": (
        "div.Tensor",
        {"List": "*other", "Scalar": "scalar", "ScalarList": "*scalars", "Tensor": "other"},
    ),
    "pow": ("pow.Tensor_Tensor", {"List": "*exponent"}),
    "clamp_max": ("clamp_max.Tensor", {"List": "*other"}),
    "clamp_min": ("clamp_min.Tensor", {"List": "*other"}),
    "maximum": ("clamp_min.Tensor", {"List": "*other"}),
    "minimum": ("clamp_max.Tensor", {"List": "*other"}),
    "lerp": (
        "lerp.Tensor",
        {"List": "*tensors1 *weights"},
    ),
    "addcmul": (
        "addcmul",
        {"Scalar": "*tensor1 *tensor2 value=1", "ScalarList": "*tensor1 *tensor2 *scalars",
         "Tensor": "*tensor1 *tensor2 *scalars"},
    ),
    "addcdiv": (
        "addcdiv",
        {"Scalar": "*tensor1 *tensor2 value=1", "ScalarList": "*tensor1 *tensor2 *scalars",
         "Tensor": "*tensor1 *tensor2 *scalars"},
    ),
}  # fmt: skip

LIMITS: dict[str, tuple[str, dict[str, str]]] = {
    name: (rule, {"Scalar": "scalar", "ScalarList": "*scalars"})
    for name, rule in (
        ("clamp_max", "clamp_max"),
        ("clamp_min", "clamp_min"),
        ("maximum", "clamp_min"),
        ("minimum", "clamp_max"),
    )
}
"""Like `TABLE`, for limits that are numbers, by which booleans cannot be clamped."""


def _parameter(spec: str) -> Parameter:
    name, _, default = spec.lstrip("*").partition("=")
    value = int(default) if default else Parameter.empty
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value)


def _foreach(name: str, specs: list[str]) -> Callable[..., list[Array]]:
    """Returns a rule over lists, from a rule over tensors; `specs` is like those in `TABLE`, but
    includes `self`.
    """
    rule = _rule(name)
    signature = Signature([_parameter(spec) for spec in specs])
    lists = [spec.lstrip("*") for spec in specs if spec.startswith("*")]

    def checked(*row: Any) -> Array:
        check(f"aten::{name}", row, {})
        return rule(*row)

    def function(*args: Any, **kwargs: Any) -> list[Array]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        count = _common_length([values[key] for key in lists])
        rows = [[v[i] if key in lists else v for key, v in values.items()] for i in range(count)]
        return _each(checked, rows)

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _each(rule: Callable[..., Array], rows: list[list[Any]]) -> list[Array]:
    """Returns the results of a rule for several rows of arguments.

    In a trace, the rule runs once for all rows whose arrays have the same shapes and dtypes, and
    whose other arguments are equal. Each row gets the equations that the rule itself would give.
    """
    kinds: dict[Any, Callable[..., Array]] = {}
    results = []
    for row in rows:
        if not all(isinstance(v, Tracer) or type(v) in _PLAIN for v in row):
            results.append(rule(*row))
            continue
        template = [_ARRAY if isinstance(v, Tracer) else v for v in row]
        kind = tuple([(type(v), repr(v)) for v in template])  # 1 == True, and -0.0 == 0.0
        run = kinds.get(kind)
        if run is None:
            run = kinds[kind] = jax.jit(partial(_filled, rule, template), inline=True)
        results.append(run(*[v for v in row if isinstance(v, Tracer)]))
    return results


def _filled(rule: Callable[..., Array], template: list[Any], *arrays: Array) -> Array:
    given = iter(arrays)
    return rule(*[next(given) if v is _ARRAY else v for v in template])


def _common_length(lists: list[Any]) -> int:
    count = len(lists[0])
    if not count:
        raise RuntimeError("Tensor list must have at least one tensor.")
    for values in lists[1:]:
        if len(values) == count:
            continue
        if all(
            not hasattr(value, "ndim") or getattr(value, "weak_type", False) for value in values
        ):
            raise RuntimeError("Tensor list must have same number of elements as scalar list.")
        raise RuntimeError(
            f"Tensor lists must have the same number of tensors, got {count} and {len(values)}"
        )
    return count


def _rule(name: str) -> Callable[..., Array]:
    found = find(name)
    assert found is not None, name
    return found.function


def _without_axes(self: Any, other: Any, *_: Any, **__: Any) -> None:
    if getattr(other, "ndim", 0):
        raise RuntimeError(
            f"scalar tensor expected to be 0 dim but it has {other.ndim} dimensions and "
            f"{other.size} elements."
        )


for _name in UNARY:
    op(f"_foreach_{_name}", layout="each")(_foreach(_name, ["*self"]))
facts("_foreach_abs", writes_in_place=("no_complex",))
facts("_foreach_zero", writes_in_place=("fills",))
for _name, (_base, _overloads) in (*TABLE.items(), *LIMITS.items()):
    for _overload, _specs in _overloads.items():
        op(f"_foreach_{_name}.{_overload}", layout="each")(
            _foreach(_base, ["*self", *_specs.split()])
        )

for _name in ("add", "mul", "div"):
    facts(f"_foreach_{_name}.Tensor", condition=_without_axes)

op("_foreach_lerp.Scalar", layout="each")(_foreach("lerp.Scalar", ["*self", "*tensors1", "weight"]))
op("_foreach_lerp.ScalarList", layout="each")(
    _foreach("lerp.Scalar", ["*self", "*tensors1", "*weight"])
)

op("_foreach_pow.Scalar", layout="each", static=("exponent",))(
    _foreach("pow.Tensor_Scalar", ["*self", "exponent"])
)
op("_foreach_pow.ScalarList", layout="each", static=("exponent",))(
    _foreach("pow.Tensor_Scalar", ["*self", "*exponent"])
)
op("_foreach_pow.ScalarAndTensor")(_foreach("pow.Scalar", ["self", "*exponent"]))

for _name, (_base, _overloads) in LIMITS.items():
    for _overload, _specs in _overloads.items():
        _word = _base.removeprefix("clamp_")
        facts(f"_foreach_{_name}.{_overload}", numbers=HoldsEachLimit(_specs.lstrip("*"), _word))


def _norm_condition(self: Any, ord: Any = 2, dtype: Any = None) -> None:
    vector_norm_condition(self, dtype=dtype)


@op("_foreach_norm.Scalar", static=("ord",), condition=_norm_condition)
def foreach_norm(self: list[Array], ord: Any = 2, dtype: Any = None) -> list[Array]:
    return _each(partial(vector_norm, dtype=dtype), [[x, ord] for x in self])


@op("_foreach_powsum.Scalar", static=("ord",))
def foreach_powsum(self: list[Array], ord: Any = 2, dtype: Any = None) -> list[Array]:
    return _each(partial(powsum, dtype=dtype), [[x, ord] for x in self])


# Gradient scaling ---------------------------------------------------------------------------------


@op("_amp_foreach_non_finite_check_and_unscale_", mutates=("self", "found_inf"))
def unscale(self: list[Array], found_inf: Array, inv_scale: Array) -> tuple[list[Array], Array]:
    """Returns the gradients times `inv_scale`, and `found_inf`, which becomes 1 if any is not
    finite."""
    bad = jnp.zeros((), jnp.bool_)
    for grad in self:
        bad = bad | ~jnp.all(jnp.isfinite(grad))
    flag = jnp.where(bad, jnp.ones((), found_inf.dtype), found_inf)
    factor = inv_scale.reshape(())
    scaled = [
        (g * factor).astype(g.dtype) if is_complex(g.dtype)
        else (g.astype(factor.dtype) * factor).astype(g.dtype)
        for g in self
    ]  # fmt: skip
    return scaled, flag


@op(
    "_amp_update_scale_",
    mutates=("self", "growth_tracker"),
    dynamic=("scale_growth_factor", "scale_backoff_factor", "growth_interval"),
)
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: Any,
) -> tuple[Array, Array]:
    """Returns the new loss scale, which shrinks after an overflow and grows after enough steps
    without one."""
    bad = found_inf.reshape(self.shape) != 0
    good_steps = growth_tracker + 1
    full = good_steps == growth_interval
    grown = self * scale_growth_factor
    grown = jnp.where(full & jnp.isfinite(grown), grown, self)
    scale = jnp.where(bad, self * scale_backoff_factor, grown).astype(self.dtype)
    steps = jnp.where(bad | full, 0, good_steps).astype(growth_tracker.dtype)
    return scale, steps
