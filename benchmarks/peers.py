"""Environments for other packages: one each, in the user's cache, made the first time."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "calque" / "peers"


def environment(*packages: str) -> Path:
    """The Python of the environment with `packages`, which is made if there is none.

    What is not installed there is taken from the environment that this runs in, so that JAX and
    PyTorch are the same unless `packages` says otherwise.

    Raises:
        subprocess.CalledProcessError: they cannot be installed.
    """
    folder = CACHE / packages[0].partition("[")[0]
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists():
        return python
    quiet = {"check": True, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], **quiet)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = folder / "lib" / version / "site-packages"
    shared = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (own / "shared.pth").write_text(shared)  # including the .pth files there, such as calque's
    subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], timeout=900, **quiet)
    done.touch()
    return python


def run(python: Path, module: str, *arguments: str, **variables: str) -> str:
    """The last line that `python -m module arguments` prints.

    Raises:
        RuntimeError: it fails; the message is the end of its errors.
    """
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [str(python), "-m", module, *arguments]
    environ = os.environ | path | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-5:]))
    return done.stdout.splitlines()[-1]
