"""Names as text that is safe for terminals and file formats."""


def printable(text: str) -> str:
    r"""Returns a name on one line, with unprintable characters escaped as in Python.

    >>> printable("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return repr(character)[1:-1] if character != " " else character


def shortened(text: str, most: int = 200) -> str:
    """Returns a text shortened to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
