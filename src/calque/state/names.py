"""Finds the names that code uses, from the bytecode, once for each code object."""

import dis
import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

_GLOBALS = frozenset(
    dis.opmap[name]
    for name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
    if name in dis.opmap
)
_MACHINERY = frozenset(("__spec__", "__loader__"))
"""Names that importing a module leaves in it, which lead to its importer."""
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_IS = dis.opmap["IS_OP"]
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
_EXTENDED = dis.opmap["EXTENDED_ARG"]
_BY_NAME = frozenset(("getattr", "setattr", "hasattr", "delattr"))
_OF_ONE = _BY_NAME | {"vars", "dir"}
MATCHED = "__match_args__"
"""The attribute of a class that names what `case Class(x, y)` reads."""
_WHOLE_WORDS = frozenset(("__dict__", "__getattribute__", "__getstate__", "__reduce_ex__"))
_WHOLE_GLOBALS = frozenset(
    (
        *("vars", "dir", "locals"),
        *("asdict", "astuple", "fields", "deepcopy", "copy", "dataclasses", "inspect", "pickle"),
    )
)
_GETTERS = frozenset(("attrgetter", "methodcaller", "getmembers", "getattr_static"))
_FORMATS = frozenset(("format", "format_map", "vformat"))
_SEES_NAMESPACES = frozenset(
    (
        *("globals", "locals", "vars", "dir", "__dict__", "__globals__", "__builtins__"),
        *("f_globals", "f_back", "_getframe", "currentframe", "extract_stack"),
    )
)
_PARTS = re.compile(r"[^\W\d]\w*")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FIELD = re.compile(r"\{([^{}:!]*)")


class Names(NamedTuple):
    """The names in a code object.

    Attributes:
        globals: the global and builtin variables that it names.
        words: names of attributes, and strings that may be such names.
        whole: whether it may read attributes of objects by names that it does not contain.
        anywhere: whether it may also do so for modules from anywhere.
        looked_into: the global variables in which it looks up computed names.
        compares: whether it compares objects by `is`.
        namespace: whether it may read global variables whose names it does not contain.
        nested: the code objects of its nested functions.
    """

    globals: frozenset[str]
    words: frozenset[str]
    whole: bool
    anywhere: bool
    looked_into: frozenset[str]
    compares: bool
    namespace: bool
    nested: tuple[CodeType, ...]


@lru_cache(maxsize=16384)
def names_of(code: CodeType, reported: bool = False) -> Names:
    """Returns the names that a code object uses (without nested functions).

    Args:
        reported: whether the functions of `calls_by_name` report the names that they look up.

    >>> names_of((lambda x: x.size + scale).__code__).globals
    frozenset({'scale'})
    """
    used = set(_globals(code))
    words = set(code.co_names)
    nested = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            nested.append(constant)
        elif isinstance(constant, str):
            words |= words_in(constant)
        elif isinstance(constant, tuple | frozenset):
            for item in constant:
                words |= words_in(item) if isinstance(item, str) else set()
    if _matches_by_position(code):
        words.add(MATCHED)
    targets: set[str | None] = set()
    if not words.isdisjoint(_OF_ONE | _WHOLE_WORDS | _FORMATS):
        targets = set(_looked_into(code, reported))
    whole = bool(targets) or not _WHOLE_WORDS.isdisjoint(words)
    whole = whole or not _WHOLE_GLOBALS.isdisjoint(used)
    anywhere = _ANYTHING in targets or not _GETTERS.isdisjoint(words) or "inspect" in used
    namespace = "globals" in used and _computes_a_global(code)
    if "globals" in used:
        used |= {c for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
    named = frozenset(t for t in targets if t is not None and t != _ANYTHING)
    return Names(
        frozenset(used),
        frozenset(words - _MACHINERY),
        whole or anywhere,
        anywhere,
        named,
        not _COMPARING.isdisjoint(words | used) or _compares_objects(code),
        namespace,
        tuple(nested),
    )


@lru_cache(maxsize=16384)
def assigns_item(code: CodeType, key: str) -> bool:
    """Returns True if code assigns an item by a constant key: `group["lr"] = 0.1`.

    >>> assigns_item(compile("d['a'] = 1", "", "exec"), "a")
    True
    """
    if key not in code.co_consts:
        return False
    line, loaded = None, None
    for one in dis.get_instructions(code):
        line = (one.positions.lineno if one.positions else None) or line
        if one.opname.startswith("LOAD_") and one.argval == key:
            loaded = line
        if one.opname == "STORE_SUBSCR" and loaded == line is not None:
            return True
    return False


def words_in(text: str) -> set[str]:
    """Returns the names of attributes in a string: in a dotted name, or in the fields of a format.

    >>> sorted(words_in("inner.gain")), words_in("{0.scale:.2f}"), words_in("some text")
    (['gain', 'inner'], {'scale'}, set())
    """
    if text.isidentifier():
        return {text}
    if _DOTTED.fullmatch(text):
        return set(text.split("."))
    return {word for field in _FIELD.findall(text) for word in _PARTS.findall(field)}


_COMPARING = frozenset(("is_", "is_not"))
"""Functions of `operator` that compare as `is` does."""


def _compares_objects(code: CodeType) -> bool:
    """Returns True if code applies `is` to two values that are not constants."""
    raw = code.co_code
    places = [i for i in range(0, len(raw), 2) if raw[i] == _IS]
    return any(raw[place - 2] != _LOAD_CONST for place in places)


def _matches_by_position(code: CodeType) -> bool:
    """Returns True if code has a pattern `case Class(x)`, which does not name the attribute."""
    raw = code.co_code
    return any(raw[i] == _MATCH_CLASS and raw[i + 1] for i in range(0, len(raw), 2))


def _globals(code: CodeType) -> set[str]:
    found, names, extended = set(), code.co_names, 0
    raw = code.co_code
    for index in range(0, len(raw), 2):
        operation, argument = raw[index], raw[index + 1] | extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation in _GLOBALS:
            found.add(names[argument >> 1 if operation == _LOAD_GLOBAL else argument])
    return found


_ANYTHING = "?"
"""Represents an object whose name is unknown."""


def _looked_into(code: CodeType, reported: bool) -> Iterator[str | None]:
    """Yields where code looks up names that are not constants.

    This is the name of a global variable, None for a method's object, or `_ANYTHING`.

    Args:
        reported: whether to skip calls of functions that report the names.
    """
    instructions = list(dis.get_instructions(code))
    own = code.co_varnames[0] if code.co_varnames[:1] in (("self",), ("cls",)) else ""
    for place, one in enumerate(instructions):
        before = instructions[place - 1] if place else None
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval == "__dict__":
            yield _target(before, own)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval in _FORMATS:
            if before is None or before.opname != "LOAD_CONST":
                yield _ANYTHING
        elif one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _OF_ONE:
            rest = instructions[place + 1 :]
            if one.argval in _BY_NAME:
                if _names_a_constant(rest) or (reported and _is_reported(one, rest)):
                    continue
            yield _target(_argument(rest, 1), own)


def _is_reported(one: dis.Instruction, rest: list[dis.Instruction]) -> bool:
    """Returns True if a builtin function is loaded and immediately called with a name."""
    return one.opname == "LOAD_GLOBAL" and _argument(rest, 2) is not None


@lru_cache(maxsize=4096)
def calls_by_name(code: CodeType) -> frozenset[str] | None:
    """Returns the builtin functions that code calls with computed names of attributes.

    Returns None if it uses one in other ways, or may find it among its global variables.

    >>> calls_by_name((lambda o, n: getattr(o, "name_" + n)).__code__)
    frozenset({'getattr'})
    >>> calls_by_name((lambda o, names: map(getattr, o, names)).__code__) is None
    True
    """
    names, found = names_of(code), set[str]()
    if not _SEES_NAMESPACES.isdisjoint(names.words | names.globals):
        return None
    if _BY_NAME.isdisjoint(names.globals):
        return frozenset()
    instructions = list(dis.get_instructions(code))
    for place, one in enumerate(instructions):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _BY_NAME:
            rest = instructions[place + 1 :]
            if not _is_reported(one, rest):
                return None
            if not _names_a_constant(rest):
                found.add(one.argval)
    return frozenset(found)


def asks_for_ids(code: CodeType, held: dict[str, Any]) -> bool:
    """Returns True if code with these global variables calls Python's `id`."""
    return "id" in names_of(code).globals and "id" not in held


def _target(loaded: dis.Instruction | None, own: str) -> str | None:
    if loaded is None:
        return _ANYTHING
    if loaded.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        return loaded.argval
    is_own = loaded.opname.startswith("LOAD_FAST") and loaded.argval == own
    return None if is_own else _ANYTHING


def _names_a_constant(instructions: list[dis.Instruction]) -> bool:
    """Returns True if the second argument of a call, whose function has been loaded, is a
    constant.
    """
    second = _argument(instructions, 2)
    return second is not None and second.opname == "LOAD_CONST" and isinstance(second.argval, str)


def _argument(instructions: list[dis.Instruction], count: int) -> dis.Instruction | None:
    """Returns a getter for an argument (counted from 1) of a call whose function is loaded."""
    depth, found = 0, None
    for one in instructions:
        if one.opname in ("CALL", "PRECALL") and one.arg == depth:
            return found
        if one.opname.startswith(("POP_JUMP", "JUMP", "FOR_ITER", "RETURN", "CALL_FUNCTION_EX")):
            return None
        depth += dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None)
        if depth < 0:  # the function is stored or passed on
            return None
        if depth == count:
            found = one
    return found


def _computes_a_global(code: CodeType) -> bool:
    """Returns True if code uses `globals()` for anything other than an item with a constant key."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "PRECALL")]
    for place, one in enumerate(instructions):
        if one.opname == "LOAD_GLOBAL" and one.argval == "globals":
            call, key, *rest = instructions[place + 1 :]
            if not call.opname.startswith("CALL") or call.arg != 0:
                return True
            if key.opname in ("LOAD_METHOD", "LOAD_ATTR"):  # `globals().get("name")`
                found = _argument(rest, 1)
            else:
                found = key if rest[0].opname.endswith("_SUBSCR") else None
            if found is None or found.opname != "LOAD_CONST":
                return True
    return False
