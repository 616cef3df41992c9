"""Draws pictures with Graphviz's program `dot`."""

import shutil
import subprocess


def picture(source: str, format: str) -> bytes:
    """Returns a picture of a DOT file.

    Args:
        source: the text of the file.
        format: `"svg"`, `"png"` or `"pdf"`.

    Raises:
        RuntimeError: `dot` is not installed, or cannot draw the graph.
    """
    program = shutil.which("dot")
    if program is None:
        raise RuntimeError(
            "drawing this needs Graphviz, whose program `dot` is not installed.\nInstall your "
            "system's graphviz package, or save the view as .html or .dot."
        )
    made = subprocess.run([program, f"-T{format}"], input=source.encode(), capture_output=True)
    if made.returncode:
        raise RuntimeError(f"Graphviz cannot draw the graph: {made.stderr.decode().strip()}")
    return made.stdout
