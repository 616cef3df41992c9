"""A griffe extension: what stands after `>>>` in a docstring is an example in the API pages.

The docstrings have no heading for examples, and without one they would be taken for Markdown, in
which `>>>` is a quotation.
"""

import textwrap
from typing import Any

import griffe


class DocstringExamples(griffe.Extension):
    """Gives the examples of each docstring the heading that griffe looks for."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object that it has loaded."""
        if obj.docstring is not None:
            obj.docstring.value = with_headings(obj.docstring.value)


def with_headings(docstring: str) -> str:
    r"""The docstring with `Examples:` over each run of doctests.

    >>> with_headings("Adds.\n\n>>> 1 + 1\n2\n\nArgs:\n    x: a number.").splitlines()[2:5]
    ['Examples:', '    >>> 1 + 1', '    2']
    """
    parts: list[str] = []
    within = False
    for paragraph in docstring.split("\n\n"):
        is_example = paragraph.startswith(">>>")
        if is_example:
            paragraph = textwrap.indent(paragraph, "    ")
            paragraph = paragraph if within else f"Examples:\n{paragraph}"
        within = is_example
        parts.append(paragraph)
    return "\n\n".join(parts)
