"""What `import calque` adds to importing PyTorch and JAX, in CPU time, each in a fresh process.

python -m benchmarks.import_time [--quick]
"""

import os
import resource
import subprocess
import sys

from benchmarks import common

PROGRAMS = {
    "python": "pass",
    "torch and jax": "import torch, jax, jax.numpy",
    "calque": "import torch, jax, jax.numpy, calque",
    "an operator": "import torch, jax, jax.numpy, calque; torch.ones(2, device='jax') + 1",
    "calque.jit": "import torch, jax, jax.numpy, calque; calque.jit",
}


def run(program: str) -> None:
    """Run a program in a fresh interpreter, which may keep its bytecode, as installed packages'."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def clock() -> float:
    """The CPU time of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    rounds = 3 if common.quick(__doc__) else 9
    candidates = {name: (lambda p=p: run(p)) for name, p in PROGRAMS.items()}
    times = common.interleave(candidates, rounds, calls=1, clock=clock)
    ratio = times["calque"] / times["torch and jax"]
    row = [*(f"{times[name]:.2f}" for name in PROGRAMS), f"{ratio:.2f}"]
    common.table(
        "Import time", [*(f"{name}, s" for name in PROGRAMS), "calque / torch and jax"], [row]
    )


if __name__ == "__main__":
    main()
