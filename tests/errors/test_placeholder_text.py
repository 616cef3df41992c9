"""Text that a traced program may show, and not read."""

import io
import re

import pytest

from calque.errors.placeholder_text import PlaceholderText


def _refusal():
    return ValueError("read")


def test_it_is_shown_and_put_together():
    text, file = PlaceholderText(" tensor ", _refusal), io.StringIO()
    print(text, f"{text}|{text!s}", f"{text}, {text}", file=file)
    print(text.strip().upper(), "a" + text, file=file)
    for line in text.splitlines():
        print(line.strip(), file=file)
    written = " tensor   tensor | tensor   tensor ,  tensor \nTENSOR a tensor \ntensor\n"
    assert file.getvalue() == written


@pytest.mark.parametrize(
    "question",
    [
        lambda text: "t" in text,
        lambda text: text == "tensor",
        lambda text: len(text.strip() + "!"),
        lambda text: {text: 1},
        lambda text: [*text],
        lambda text: text[0],
        lambda text: text.splitlines()[0] == "tensor",
        lambda text: ("a" + text).split("b"),
        bool,
    ],
)
def test_the_programs_questions_raise(question):
    with pytest.raises(ValueError, match="read"):
        question(PlaceholderText("tensor", _refusal))


def test_code_of_libraries_may_ask():
    assert re.sub("t", "x", PlaceholderText("tensor", _refusal)) == "xensor"
    assert io.StringIO(PlaceholderText("a\nb", _refusal)).readlines() == ["a\n", "b"]
