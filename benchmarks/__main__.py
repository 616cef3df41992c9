"""Run every benchmark, each in its own process: python -m benchmarks [--quick]."""

import subprocess
import sys

NAMES = (
    "train_step",
    "eager",
    "ops",
    "convolutions",
    "hlo",
    "host_overhead",
    "guards",
    "small_steps",
    "trace_time",
    "compile",
    "buckets",
    "trace",
    "record",
    "memory",
    "sharding",
    "federated",
    "growth",
    "first_step",
    "import_time",
)


def main() -> int:
    failed = [
        name
        for name in NAMES
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]).returncode
    ]
    print(f"\nfailed: {', '.join(failed)}" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
