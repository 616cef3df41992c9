"""Parses the compact notation of types, the inverse of `str`."""

import difflib
import re

from calque.errors import with_user_frames
from calque.federated.errors import type_error
from calque.federated.types.kinds import (
    CLIENTS,
    DTYPES,
    SERVER,
    AbstractType,
    FederatedType,
    FunctionType,
    PlacementLiteral,
    PlacementType,
    SequenceType,
    StructType,
    TensorType,
    Type,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<arrow>->)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9]+)"
    r"|(?P<quoted>'(?:[^'\\]|\\.)*')|(?P<sign>[<>\[\](){}@*,=?]))",
    re.DOTALL,
)


@with_user_frames
def parse_type(text: str) -> Type:
    """Returns the type for a text in the compact notation.

    Args:
        text: such as `float32[2,?]`, `<a=int32,float32>`, `int32*`, `(int32 -> bool)`,
            `{float32}@CLIENTS`.

    Raises:
        FederatedTypeError: the text is not a type; the message shows where.

    >>> parse_type("<a=int32,{float32[3]}@CLIENTS>")["a"]
    TensorType(dtype=dtype('int32'), shape=())
    """
    reader = _Reader(text)
    found = reader.type()
    if reader.kind != "end":
        raise reader.error("this does not belong to the type before it")
    return found


class _Reader:
    """Reads tokens in sequence; `kind` and `text` describe the next one."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.position = self.start = 0
        self.advance()

    def advance(self) -> str:
        """Consume the next token; returns its text."""
        text = getattr(self, "text", "")
        rest = self.source[self.position :]
        if not rest.strip():
            self.start = len(self.source.rstrip())
            self.kind, self.text = "end", ""
            return text
        match = _TOKEN.match(self.source, self.position)
        if match is None:
            self.start = len(self.source) - len(rest.lstrip())
            self.kind, self.text = "sign", rest.lstrip()[0]
            raise self.error("this is not part of a type")
        self.kind, self.position = str(match.lastgroup), match.end()
        self.text = match[self.kind]
        self.start = match.start(self.kind)
        return text

    def error(self, why: str) -> Exception:
        return type_error(
            f"{why}:\n  {self.source}\n  {' ' * self.start}^",
            "Examples of types: float32[2,?], <a=int32,float32>, int32*, (int32 -> bool), "
            "{float32}@CLIENTS or float32@SERVER.",
        )

    def expect(self, text: str) -> None:
        if self.text != text or self.kind not in ("sign", "arrow"):
            raise self.error(f"{text!r} is missing before this")
        self.advance()

    def sees(self, sign: str) -> bool:
        return self.kind == "sign" and self.text == sign

    def type(self) -> Type:
        if self.sees("{"):
            self.advance()
            member = self.type()
            self.expect("}")
            return self.placed(member, all_equal=False)
        found = self.simple()
        while self.sees("*"):
            self.advance()
            found = SequenceType(found)
        return self.placed(found, all_equal=True) if self.sees("@") else found

    def placed(self, member: Type, all_equal: bool) -> Type:
        self.expect("@")
        if self.text not in PlacementLiteral.__members__:
            raise self.error(f"a placement must be {CLIENTS} or {SERVER}")
        return FederatedType(member, PlacementLiteral[self.advance()], all_equal)

    def simple(self) -> Type:
        if self.sees("<"):
            return self.struct()
        if self.sees("("):
            return self.function()
        if self.kind != "word":
            raise self.error("a type is missing before this")
        if self.text in DTYPES:
            return TensorType(DTYPES[self.advance()], self.shape())
        if self.text == "placement":
            self.advance()
            return PlacementType()
        if self.text[0].isupper() and self.text not in PlacementLiteral.__members__:
            return AbstractType(self.advance())
        close = difflib.get_close_matches(self.text, DTYPES, 1)
        raise self.error(f"this is not a dtype{f'; did you mean {close[0]}?' if close else ''}")

    def shape(self) -> tuple[int | None, ...]:
        if not self.sees("["):
            return ()
        self.advance()
        sizes: list[int | None] = []
        while not self.sees("]"):
            if sizes:
                self.expect(",")
            if not (self.kind == "number" or self.sees("?")):
                raise self.error("a size, or ? for an unknown one, is missing before this")
            text = self.advance()
            sizes.append(None if text == "?" else int(text))
        self.advance()
        return tuple(sizes)

    def struct(self) -> Type:
        self.advance()
        elements: list[tuple[str | None, Type]] = []
        while not self.sees(">"):
            if elements:
                self.expect(",")
            elements.append((self.name(), self.type()))
        self.advance()
        return StructType(tuple(elements))

    def name(self) -> str | None:
        """Returns the name before `=`, if the next tokens are one."""
        if self.kind == "quoted":
            name = re.sub(r"\\(.)", r"\1", self.advance()[1:-1], flags=re.DOTALL)
        elif self.kind == "word" and re.match(r"\s*=", self.source[self.position :]):
            name = self.advance()
        else:
            return None
        self.expect("=")
        return name

    def function(self) -> Type:
        self.advance()
        parameter = None if self.kind == "arrow" else self.type()
        self.expect("->")
        result = self.type()
        self.expect(")")
        return FunctionType(parameter, result)
