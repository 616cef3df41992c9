"""Each rule of the table, and what all of them keep."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calque import federated as fed
from calque.errors import InternalError
from calque.federated import building_blocks as bb
from calque.federated import transformations
from calque.federated.transformations import RULES, transform
from calque.federated.types import FunctionType, StructType, Type, parse_type

INT32 = parse_type("int32")
ADD = bb.CompiledComputation(
    "add",
    lambda pair: pair[0] + pair[1],
    FunctionType(StructType(((None, INT32), (None, INT32))), INT32),
)


def ref(name: str, kind: Type = INT32) -> bb.Reference:
    return bb.Reference(name, kind)


def one(value: int = 1) -> bb.Literal:
    return bb.Literal(np.int32(value))


def add(a: bb.BuildingBlock, b: bb.BuildingBlock) -> bb.Call:
    return bb.Call(ADD, bb.Struct(((None, a), (None, b))))


def lam(name: str, body: bb.BuildingBlock, kind: Type = INT32) -> bb.Lambda:
    return bb.Lambda(name, kind, body)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (lam("x", bb.Call(lam("y", ref("y")), ref("x"))), "(v0 -> v0)"),
        (lam("x", bb.Selection(bb.Struct((("a", ref("x")),)), "a")), "(v0 -> v0)"),
        (lam("x", bb.Block((("y", ref("x")),), ref("y"))), "(v0 -> v0)"),
        (
            lam("x", add(add(ref("x"), one()), ref("x"))),
            "(v0 -> (let v1=comp#add(<v0,1>),v2=comp#add(<v1,v0>) in v2))",
        ),
        (
            lam("x", bb.Call(lam("y", add(ref("y"), ref("y"))), add(ref("x"), one()))),
            "(v0 -> (let v1=comp#add(<v0,1>),v3=comp#add(<v1,v1>) in v3))",
        ),
        (
            lam("x", lam("x", add(ref("x"), one()))),
            "(v0 -> (v1 -> (let v2=comp#add(<v1,1>) in v2)))",
        ),
        (
            bb.Call(bb.Call(lam("x", lam("y", add(ref("x"), ref("y")))), one(1)), one(2)),
            "(let v4=comp#add(<1,2>) in v4)",
        ),
        (bb.Block((("x", ref("x")),), ref("x")), "x"),
        (add(ref("v0"), one()), "(let v1=comp#add(<v0,1>) in v1)"),
    ],
)
def test_inline(block: bb.BuildingBlock, expected: str) -> None:
    got = str(transform(block, "inline"))
    assert renumbered(got) == renumbered(expected)


def renumbered(text: str) -> str:
    """Names v3, v7 in order of appearance, so that gaps do not matter."""
    import re

    seen: dict[str, str] = {}
    return re.sub(r"v\d+", lambda m: seen.setdefault(m[0], f"n{len(seen)}"), text)


def test_names_that_shadow_others_are_kept_apart() -> None:
    y = lam("y", bb.Call(lam("x", add(ref("x"), ref("y"))), one()))
    inlined = transform(lam("x", bb.Call(y, ref("x"))), "inline")
    assert renumbered(str(inlined)) == "(n0 -> (let n1=comp#add(<1,n0>) in n1))"


def test_dedupe_makes_a_repeated_call_once() -> None:
    block = lam("x", add(add(ref("x"), one()), add(ref("x"), one())))
    changed = transform(block, "inline", "dedupe")
    assert renumbered(str(changed)) == (
        "(n0 -> (let n1=comp#add(<n0,1>),n2=comp#add(<n1,n1>) in n2))"
    )


def test_dedupe_knows_functions_by_more_than_their_names() -> None:
    kind = parse_type("{int32}@CLIENTS")

    def mapped(name: str, value: int) -> bb.BuildingBlock:
        function = lam(name, add(ref(name), one(value)))
        argument = bb.Struct(((None, function), (None, ref("x", kind))))
        uri = bb.Intrinsic("federated_map", FunctionType(argument.type, kind))
        return bb.Call(uri, argument)

    def count(*calls: bb.BuildingBlock) -> int:
        block = bb.Lambda("x", kind, bb.Struct(tuple((None, call) for call in calls)))
        return str(transform(block, "inline", "dedupe")).count("federated_map")

    assert count(mapped("a", 1), mapped("b", 1)) == 1
    assert count(mapped("a", 1), mapped("a", 2)) == 2


def test_unused_calls_are_removed() -> None:
    block = lam("x", bb.Block((("y", add(ref("x"), one())),), ref("x")))
    assert str(transform(block, "inline", "remove_unused")) == "(v0 -> v0)"


def test_a_call_that_only_an_unused_one_needs_is_removed_with_it() -> None:
    chain = bb.Block((("y", add(ref("x"), one())), ("z", add(ref("y"), one()))), ref("x"))
    assert str(transform(lam("x", chain), "remove_unused")) == "(x -> x)"


def _map(function: bb.Lambda, source: bb.BuildingBlock) -> bb.Call:
    kind = parse_type("{int32}@CLIENTS")
    argument = bb.Struct(((None, function), (None, source)))
    return bb.Call(bb.Intrinsic("federated_map", FunctionType(argument.type, kind)), argument)


def test_a_map_of_a_map_becomes_one() -> None:
    kind = parse_type("{int32}@CLIENTS")
    twice = _map(
        lam("b", add(ref("b"), one(2))), _map(lam("a", add(ref("a"), one())), ref("x", kind))
    )
    changed = transform(bb.Lambda("x", kind, twice))
    assert renumbered(str(changed)) == (
        "(n0 -> (let n1=federated_map(<(n2 -> "
        "(let n3=comp#add(<n2,1>),n4=comp#add(<n3,2>) in n4)),n0>) in n1))"
    )


def test_a_chain_of_maps_is_as_long_fused_as_before() -> None:
    chain: bb.BuildingBlock = ref("x", parse_type("{int32}@CLIENTS"))
    for _ in range(40):
        chain = _map(lam("a", add(ref("a"), one())), chain)
    apart = transform(bb.Lambda("x", chain.type, chain), "inline")
    fused = transform(apart, "fuse_maps")
    assert str(fused).count("federated_map") == 1
    assert str(fused).count("comp#add") == str(apart).count("comp#add") == 40


def test_a_map_whose_result_is_used_twice_stays() -> None:
    kind = parse_type("{int32}@CLIENTS")
    inner = ref("m", kind)
    outer = _map(lam("b", add(ref("b"), one(2))), inner)
    locals_ = (("m", _map(lam("a", add(ref("a"), one())), ref("x", kind))),)
    both = bb.Block(locals_, bb.Struct(((None, inner), (None, outer))))
    changed = transform(bb.Lambda("x", kind, both))
    assert str(changed).count("federated_map") == 2


def test_a_rule_that_loses_a_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformations.RULES, "broken", lambda block: lam("x", ref("lost")))
    with pytest.raises(InternalError, match="lost"):
        transform(lam("x", ref("x")), "broken")


def test_a_rule_that_changes_the_type_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformations.RULES, "broken", lambda block: one())
    with pytest.raises(InternalError, match="'broken' changed"):
        transform(lam("x", ref("x")), "broken")


@st.composite
def programs(draw: st.DrawFn, names: tuple[str, ...] = ("x",), depth: int = 3) -> bb.BuildingBlock:
    """Programs of integers: sums, locals that may shadow, lambdas called at once, selections."""
    kind = draw(st.sampled_from(["ref", "one", "add", "let", "call", "select"]))
    if depth == 0 or kind in ("ref", "one"):
        return ref(draw(st.sampled_from(names))) if kind != "one" else one(draw(st.integers(0, 3)))
    first, second = draw(programs(names, depth - 1)), draw(programs(names, depth - 1))
    if kind == "add":
        return add(first, second)
    if kind == "select":
        struct = bb.Struct((("a", first), (None, second)))
        return bb.Selection(struct, draw(st.sampled_from(["a", 1])))
    name = draw(st.sampled_from(["x", "y", "v0"]))
    body = draw(programs((*names, name), depth - 1))
    if kind == "let":
        return bb.Block(((name, first),), body)
    return bb.Call(lam(name, body), first)


def value_of(block: bb.BuildingBlock, names: dict[str, object]) -> object:
    """What a program of integers computes."""
    match block:
        case bb.Reference():
            return names[block.name]
        case bb.Literal():
            return int(block.value)
        case bb.Struct():
            return [value_of(part, names) for part in block.children()]
        case bb.Selection():
            return value_of(block.source, names)[block.index]  # type: ignore[index]
        case bb.Lambda():
            return lambda argument: value_of(
                block.result, {**names, str(block.parameter): argument}
            )
        case bb.CompiledComputation():
            return block.function
        case bb.Call():
            assert block.argument is not None
            return value_of(block.function, names)(value_of(block.argument, names))  # type: ignore[operator]
        case bb.Block():
            inner = dict(names)
            for name, part in block.locals:
                inner[name] = value_of(part, inner)
            return value_of(block.result, inner)
    raise AssertionError(block)


@given(programs(), st.sampled_from([("inline",), ("inline", "dedupe"), ("remove_unused",), ()]))
def test_rules_do_not_change_what_a_program_computes(
    program: bb.BuildingBlock, rules: tuple[str, ...]
) -> None:
    block = lam("x", program)
    changed = transform(block, *rules)
    assert value_of(changed, {})(5) == value_of(block, {})(5)  # type: ignore[operator]


@given(programs())
def test_the_normal_form_is_one(program: bb.BuildingBlock) -> None:
    once = transform(lam("x", program))
    assert bb.same(transform(once), once)


def test_every_rule_is_in_the_table() -> None:
    assert set(transformations.NORMAL_FORM) <= set(RULES)


@pytest.mark.parametrize("kind", ["float32@SERVER", "{float32}@CLIENTS"])
def test_programs_may_be_longer_than_python_recurses(kind: str) -> None:
    count = sys.getrecursionlimit()

    @fed.computation(kind)
    def counted(x: Any) -> Any:
        for _ in range(count):
            x = x + 1.0
        return x if kind.endswith("SERVER") else fed.federated_max(x)

    assert float(counted(0.0 if kind.endswith("SERVER") else [0.0, -1.0])) == count
