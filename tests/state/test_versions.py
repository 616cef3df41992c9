"""Versions of dicts say what a comparison of every key and value would say."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calque.state.paths import Path
from calque.state.rows import ClassRow, DictRow, NamedRow
from calque.state.versions import Versions, has_version, version_of

pytestmark = pytest.mark.skipif(version_of is None, reason="Python keeps no versions of dicts")

NAMES = "abcd"
VALUES = [0, False, 0.0, -0.0, None, "a", (), [], [], object(), object()]
WRITES = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(NAMES), st.sampled_from(range(len(VALUES)))),
    st.tuples(st.just("del"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("last"), st.sampled_from(NAMES), st.just(0)),
)


class Holder:
    pass


def write(owner, kind, name, index):
    if kind == "set":
        owner[name] = VALUES[index]
    elif kind == "del":
        owner.pop(name, None)
    elif name in owner:
        owner[name] = owner.pop(name)


def content(owner, ordered, free=()):
    items = [(key, id(value)) for key, value in owner.items() if key not in free]
    return items if ordered else dict(items)


@settings(max_examples=200, deadline=None)
@given(st.lists(WRITES, max_size=4), st.lists(st.lists(WRITES, max_size=3), max_size=4))
def test_a_dict_is_seen_to_hold_what_it_held(first, rounds):
    plain, missing, attributes = {}, defaultdict(list), vars(Holder())
    owners = (plain, missing, attributes)
    for owner in owners:
        for one in first:
            write(owner, *one)
    path = Path("x", foreign=True)
    rows = [DictRow(owner, path) for owner in owners] + [NamedRow(plain, path, {"a", "c"})]
    assert all(map(has_version, rows))
    free = {rows[1]: {"b"}}
    versions = Versions(rows, free)
    before = [content(owner, True) for owner in owners]
    named = content({k: v for k, v in plain.items() if k in "ac"}, False)
    kept = content(missing, True, {"b"}), list(missing)
    for writes in rounds:
        for one in writes:
            for owner in owners:
                write(owner, *one)
        same = (
            content(plain, True) == before[0]
            and (content(missing, True, {"b"}), list(missing)) == kept
            and content(attributes, True) == before[2]
            and content({k: v for k, v in plain.items() if k in "ac"}, False) == named
        )
        assert versions.hold() is same
        assert versions.hold() is same


def test_what_a_class_holds_has_a_version():
    class Kind:
        scale = 2

    row = ClassRow(Kind, Path("Kind"), {"scale", "offset"})
    assert has_version(row)
    versions = Versions([row], {})
    assert versions.hold()
    Kind.other = 1
    assert versions.hold()
    Kind.scale = 3
    assert not versions.hold()
    Kind.scale = 2
    assert versions.hold()
    Kind.offset = 1
    assert not versions.hold()
    del Kind.offset
    Kind.__call__ = lambda self: 1
    assert not versions.hold()


def test_the_order_of_an_ordered_dict_has_no_version():
    from collections import OrderedDict

    assert not has_version(DictRow(OrderedDict(a=1), Path("x")))


def test_an_object_must_have_the_dict_whose_version_is_read():
    objects = [Holder(), Holder(), Holder()]
    objects[2].__dict__ = objects[1].__dict__
    for index, one in enumerate(objects):
        one.a = index
    path = Path("x")
    rows = [DictRow(vars(one), path) for one in objects[:2]]
    versions = Versions(rows, {}, objects)
    assert versions.hold()
    held = vars(objects[0])
    objects[0].__dict__ = dict(held)
    assert not versions.hold()
    objects[0].__dict__ = held
    assert versions.hold()
    objects[2].a = objects[1].a
    assert versions.hold()
    objects[2].a = 3
    assert not versions.hold()
    objects[1].a = 2
    assert versions.hold()
    objects[1].__dict__, objects[0].__dict__ = vars(objects[0]), vars(objects[1])
    assert not versions.hold()
