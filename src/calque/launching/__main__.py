"""One process of `calque launch`: joins the others, then runs the program as Python would."""

import os
import runpy
import sys
from pathlib import Path

from calque.launching.joining import join


def main() -> None:
    """Run the program that the command line names."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    join()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename != sys.argv[0]:
            step = step.tb_next
        sys.excepthook(type(error), error, step or error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # an orderly exit waits for the others, and they for this process


if __name__ == "__main__":
    main()
