"""Whether a program reads a text that it makes."""

import io
import logging
import re
import sys
import textwrap
import warnings
from dataclasses import dataclass

import pytest

from calque.errors.text_use import is_read

LOG = logging.getLogger("calque.test_text_use")


class Shown:
    """Notes whether its text is read."""

    read = False

    def __repr__(self):
        self.read |= is_read(sys._getframe(1))
        return "shown"


@dataclass
class Pair:
    left: object


class Helper:
    last = 0

    def say(self, *, message):
        LOG.info(message)

    def ask(self, message):
        if "nan" in message:
            self.last = 1

    def make(self, x):
        return "a %s b %s" % (x, x)  # noqa: UP031


HELPER = Helper()


def decides(text):
    return "1" in text


def counts(text, n=0):
    if len(text) > 10:
        n = 1
    return n


def same(text):
    return text


def show(text):
    print(text, file=io.StringIO())


def both(x):
    return f"{x} and {x}"


def variable(x):
    text = f"{x} {x}"
    return 2 if "1.0" in text else 3


def joined(x):
    return len(", ".join([str(x), str(x)]))


def searched(x):
    text = ", ".join(f"{k}={v}" for k, v in {"a": x}.items())
    return 2 if re.search(r"\d", text) else 3


def parsed(x):
    try:
        return float(f"1{x}".split("(")[-1])
    except ValueError:
        return 0


def letters(x):
    return sum(letter == "1" for letter in f"{x} {x}")


def loop(x):
    n = 0
    for letter in f"{x} {x}":
        n += letter == "1"
    return n


def kept_number(x):
    HELPER.last = len(f"a {x}")


def renamed(x):
    first = f"a {x}"
    second = first.upper()
    third = second + "b"
    while third.endswith("c"):
        third = ""


def line_by_line(x):
    for line in f"a {x}\nb".splitlines():
        show(line.strip())


def line_that_decides(x):
    for line in f"a {x}\nb".splitlines():
        if line.startswith("c"):
            return 2
    return 3


READING = {
    "line that decides": line_that_decides,
    "number of lines": lambda x: len(f"a {x}".splitlines()),
    "first line": lambda x: 2 if f"a {x}".splitlines()[0] == "a" else 3,
    "len": lambda x: len(f"x is {x}"),
    "in": lambda x: 2 if "1.0" in f"loss {x} at {x}" else 3,
    "variable": variable,
    "joined": joined,
    "searched": searched,
    "parsed": parsed,
    "loop": loop,
    "letters": letters,
    "kept number": kept_number,
    "renamed": renamed,
    "function that decides": lambda x: 2 if decides(f"{x} {x}") else 3,
    "function that counts": lambda x: 2 * counts(f"{x} {x}"),
    "function that makes it": lambda x: both(x).startswith("t"),
    "function that returns it": lambda x: len(same(f"{x} {x}")),
    "method that decides": lambda x: HELPER.ask(f"{x} {x}"),
    "method that makes it": lambda x: len(HELPER.make(x)),
    "key": lambda x: {"a 1.0": 2}.get(f"a {x}", 3),
    "format": lambda x: len("{} {}".format(x, x)),  # noqa: UP032
    "equal": lambda x: 2 if f"a {x}" == "a 1.0" else 3,
    "named in an expression": lambda x: 2 if (t := f"a {x}") and t[2] == "1" else 3,
    "data class": lambda x: len(f"{Pair(x)} a"),
    "method": lambda x: f"{x} {x}".isdigit(),
    "hash": lambda x: hash(f"a {x}") % 7,
}


def warned(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn(f"a {x} b", stacklevel=1)


def raised(x):
    try:
        raise ValueError(f"a {x} b")
    except ValueError as error:
        show(error)


def raised_later(x):
    error = RuntimeError(f"a {x} b")
    if x is None:
        raise error


def collected(x):
    lines = []
    lines.append(f"a {x} b")
    show("\n".join(lines))


def of_a_type(x):
    text = f"a {x} b"
    if not isinstance(text, str) or type(text) is bytes:
        HELPER.last = 3


def in_variable(x):
    text = f"a {x} b {x}"
    show(text)
    LOG.info(text)
    return text


SHOWING = {
    "line by line": line_by_line,
    "indented": lambda x: show("\n".join("  " + line for line in f"a {x}".splitlines())),
    "the type of": of_a_type,
    "print": lambda x: print(f"a {x} b {x}", file=io.StringIO()),
    "in a variable": in_variable,
    "function that prints": lambda x: show(f"a {x} b"),
    "method that logs": lambda x: HELPER.say(message=f"a {x} b"),
    "warned": warned,
    "raised": raised,
    "raised later": raised_later,
    "collected": collected,
    "log": lambda x: LOG.info("x %s %s", x, x),
    "made by a function": lambda x: show(both(x)),
    "wrapped": lambda x: show(textwrap.fill(f"a {x} b")),
    "written": lambda x: io.StringIO().write(f"a {x} b\n"),
    "conditional part": lambda x: show(f"{'=' * 3} {x} {'a' if x is None else 'b'}"),
    "data class": lambda x: show(f"{Pair(x)} a"),
    "sum of texts": lambda x: LOG.info(f"a {x}" + f"b {x}"),
}


@pytest.mark.parametrize("name", READING)
def test_text_that_decides_is_read(name):
    x = Shown()
    if READING[name](x) == 2:
        HELPER.last = 2
    assert x.read


@pytest.mark.parametrize("name", SHOWING)
def test_text_that_is_shown_is_not_read(name):
    x = Shown()
    SHOWING[name](x)
    assert not x.read
