"""What is known of an operator is told in one place: beside its rule."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import calque
from calque.device.kernels import binding
from calque.ops.table.facts import FACTS, Known, facts
from calque.ops.table.registry import RULES

SOURCE = Path(calque.__file__).parent

OTHERS = {
    "__init__.py": "calque's own names",
    "comparing/naming.py": "spellings of Python's operators",
    "tracing/lowering/complex_parts.py": "the position of the dimension among the arguments",
    "tracing/lowering/composites.py": "what decomposes where PyTorch's own way is not functional",
    "tracing/lowering/functional_forms.py": "methods of autograd",
    "tracing/record/numbers.py": "functions whose results have one shape for all numbers",
    "tracing/record/number_uses.py": "functions of Python's numbers",
    "view/families.py": "the families by which nodes are coloured",
    "view/palette.py": "colours",
    "view/readers/fx.py": "checks that are no nodes to look at",
    "view/served.py": "four that move nothing",
    "convert/counting.py": "what operators compute",
    "convert/onnx_bessel.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_matrices.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_decompositions.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_indexing.py": "PyTorch's operators, and how each is written with ONNX's",
    "convert/onnx_layers.py": "PyTorch's operators, and how each is written with ONNX's",
    "convert/onnx_static_indexing.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_special.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_scans.py": "PyTorch's operators, and how each is written with ONNX's",
    "convert/onnx_complex_rules.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_quantization.py": "PyTorch's operators, and how each is written with others",
    "convert/onnx_pointwise.py": "PyTorch's operators, and how each is written with ONNX's",
    "convert/onnx_reductions.py": "PyTorch's operators, and how each is written with ONNX's",
    "errors/placeholder_text.py": "methods of strings",
    "device/kernels/allocations.py": "kernels written by hand",
    "device/kernels/attention_backend.py": "kernels written by hand",
    "device/kernels/copies.py": "kernels written by hand",
    "device/kernels/indices.py": "kernels written by hand",
    "device/kernels/remedies.py": "what a program calls with sizes",
    "device/kernels/views.py": "kernels written by hand",
    "dynamo/buckets/padding/elementwise.py": "JAX's primitives",
    "dynamo/buckets/padding/reductions.py": "JAX's primitives",
    "federated/tracing/calls.py": "Python's operators",
    "program/channels_last.py": "JAX's primitives",
    "jitting/group_reads.py": "methods of dicts",
    "program/traced_functions.py": "functions of Python's `math`",
    "program/traced_numbers.py": "Python's operators",
    "tracing/lowering/checked_properties.py": "methods whose result is a view or a copy",
    "tracing/abstract/fakes.py": "operators of which PyTorch's shape functions refuse too much",
    "tracing/lowering/sharing.py": "functions whose schemas do not say what they share",
    "tracing/lowering/unseen_writes.py": "methods that take a tensor apart from autograd",
    "program/lazy_arguments.py": "Python's operators",
    "tracing/abstract/tensor_properties.py": "what a program may ask of a tensor",
    "tracing/abstract/tensor_inference.py": "what a program may ask of a tensor",
    "tracing/core/refusals.py": "what a program may ask of a tensor",
    "tracing/graph/value_guards.py": "what a program may ask of a tensor",
    "tracing/graph/checks.py": "what a program may ask of a tensor",
    "tracing/record/escapes.py": "what a program may ask of a tensor",
    "tracing/core/torch_settings.py": "settings of PyTorch",
    "device/validation/factorizations.py": "kernels written by hand",
    "program/view_arguments.py": "arguments of an operator",
    "program/moving_indexes.py": "methods that take positions, or tell them",
    "program/whole_operands.py": "Python's operators, and functions that take plain numbers",
    "device/kernels/storage.py": "methods of a storage",
    "convert/reading.py": "what a program may ask of a tensor",
    "errors/text_use.py": "methods of text",
    "tracing/abstract/abstract_values.py": "methods that tell, or change, how much a tensor stores",
}
"""Files that list names which are operators' too, and what they are there."""

FORMER = {"cholesky", "cholesky.out"}
"""Operators that PyTorch 2.15 has no more."""


@cache
def _operators() -> frozenset[str]:
    found = set(FORMER)
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            name = schema.name.removeprefix("aten::")
            found |= {name, f"{name}.{schema.overload_name}"}
    return frozenset(found)


def _named(node: ast.expr | None) -> bool:
    """Whether an expression is an operator, or the name of one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.removeprefix("aten::") in _operators()
    return isinstance(node, ast.Attribute) and "aten." in ast.unparse(node)


def _collections(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """For each collection in a source, its line and how many operators it names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            yield node.lineno, sum(map(_named, node.elts))
        elif isinstance(node, ast.Dict):
            yield node.lineno, sum(map(_named, node.keys))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            known = sum(word in _operators() for word in words)
            yield node.lineno, known if 4 * known > 3 * len(words) else 0


def _lists(path: Path) -> list[int]:
    """The lines of a file at which a collection names three operators or more."""
    found = _collections(ast.parse(path.read_text()))
    return [line for line, count in found if count >= 3]


def test_operators_are_listed_in_the_op_table_alone():
    files = {p.relative_to(SOURCE).as_posix(): p for p in SOURCE.rglob("*.py")}
    listing = {name: _lists(path) for name, path in files.items() if not name.startswith("ops/")}
    second = {f"{n}:{line}" for n, lines in listing.items() if n not in OTHERS for line in lines}
    assert not second, "tell it in ops/, beside the rule (calque.ops.table.facts)"


def test_every_file_that_is_excepted_has_a_list():
    assert [name for name in OTHERS if not _lists(SOURCE / name)] == []


@pytest.mark.parametrize(
    "source",
    ["x = {'aten::mm': 1, 'aten::bmm': 2, 'aten::mv': 3}", "x = f('mm bmm addmm.out')",
     "x = (aten.mm.default, torch.ops.aten.bmm.default, aten.mv.out)"],
)  # fmt: skip
def test_a_list_of_operators_is_found(source, tmp_path):
    path = tmp_path / "listing.py"
    path.write_text(source)
    assert _lists(path) == [1]


def test_facts_are_told_of_operators_that_exist():
    known = {n.partition("::")[2] for n in torch._C._dispatch_get_all_op_names()}
    told = {name.removeprefix("aten::") for name in FACTS}
    assert told - known - {name.removeprefix("aten::") for name in RULES} == set()


def test_what_no_fact_is_called_is_refused():
    with pytest.raises(TypeError, match="operators have no fact called layuot"):
        facts("mm", layuot="images")  # pyright: ignore[reportCallIssue]


def test_facts_that_go_with_a_rule_are_told_of_operators_with_a_rule():
    of_kernels = Known.__annotations__.keys() - {"autocast", "unsafe_autocast"}
    assert [n for n, known in FACTS.items() if of_kernels & known.keys() and n not in RULES] == []


def _forms(name: str) -> list[str]:
    base = name.partition(".")[0]
    return [
        other
        for other in torch._C._dispatch_get_all_op_names()
        if other.partition(".")[0].removesuffix("_") == base
        and other != name
        and binding.functional_of(other) is RULES[name]
    ]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x, i, out: torch.gather(x, 0, i, out=out), "out of bounds"),
        (lambda x, i, out: torch.index_select(x, 0, i, out=out), "index out of range in self"),
        (lambda x, i, out: torch.take(x, i, out=out), "out of range: tried to access"),
        (lambda x, i, out: torch.poisson(-x).copy_(out), "invalid Poisson rate"),
    ],
)
def test_checks_of_values_hold_of_every_form(call, error):
    x, index = torch.ones(3, device="jax"), torch.tensor([0, 1, 7], device="jax")
    with pytest.raises((RuntimeError, IndexError), match=error):
        call(x, index, torch.empty(3, device="jax"))


def test_division_by_zero_raises_in_every_form():
    ones, zeros = torch.ones(2, dtype=torch.int64, device="jax"), torch.zeros(2, dtype=torch.int64)
    zeros = zeros.to("jax")
    forms = [
        name for name in ("aten::remainder.Tensor", "aten::fmod.Tensor") for name in _forms(name)
    ]
    assert {"aten::remainder_.Tensor", "aten::fmod.Tensor_out"} <= {*forms}
    for name in forms:
        op = binding.overload_of(name)
        out = {"out": torch.empty_like(ones)} if any(a.is_out for a in op._schema.arguments) else {}
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            op(ones.clone(), zeros, **out)


def test_a_divisor_on_the_cpu_is_checked_at_every_call_of_a_jitted_function():
    divide = calque.jit(lambda x, y: x // y, checks=True)
    x = torch.arange(1, 4, device="jax")
    assert divide(x, torch.tensor(2)).tolist() == [0, 1, 1]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        divide(x, torch.tensor(0))
    assert divide(x, torch.tensor(3)).tolist() == [0, 0, 1]
