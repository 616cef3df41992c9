"""A process of `calque launch`: connects to the other processes, then runs the program like
Python.
"""

import os
import runpy
import sys
from pathlib import Path

from calque.launching.joining import join


def main() -> None:
    """Run the program named on the command line."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    join()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        if error.code:
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            _leave(error.code if isinstance(error.code, int) else 1)
        raise
    except BaseException as error:
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename != sys.argv[0]:
            step = step.tb_next
        sys.excepthook(type(error), error.with_traceback(step or error.__traceback__), step)
        _leave(1)


def _leave(status: int) -> None:
    """End this process at once; in an orderly exit the processes would wait for each other."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
