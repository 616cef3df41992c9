"""Names as text that no terminal and no file format takes for anything else."""


def printable(text: str) -> str:
    r"""Returns a name on one line, with what cannot be printed as Python spells it.

    >>> printable("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return repr(character)[1:-1] if character != " " else character


def shortened(text: str, most: int = 200) -> str:
    """Returns a text of no more characters than `most`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
