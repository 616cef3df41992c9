"""What `import calque` adds to importing PyTorch and JAX, each in a fresh process.

python -m benchmarks.import_time [--quick]
"""

import os
import subprocess
import sys

from benchmarks import common

PROGRAMS = {
    "python": "pass",
    "torch and jax": "import torch, jax, jax.numpy",
    "calque": "import torch, jax, jax.numpy, calque",
}


def run(program: str) -> None:
    """Run a program in a fresh interpreter, which may keep its bytecode, as installed packages'."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def main() -> None:
    rounds = 3 if common.quick(__doc__) else 9
    candidates = {name: (lambda p=p: run(p)) for name, p in PROGRAMS.items()}
    times = common.interleave(candidates, rounds, calls=1)
    ratio = times["calque"] / times["torch and jax"]
    row = [*(f"{times[name]:.2f}" for name in PROGRAMS), f"{ratio:.2f}"]
    common.table(
        "Import time", [*(f"{name}, s" for name in PROGRAMS), "calque / torch and jax"], [row]
    )


if __name__ == "__main__":
    main()
