"""The demo runs."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_digits(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples/digits.py", "--epochs", "2", "--output", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "calque.jit" in result.stdout
    assert (tmp_path / "digits.png").stat().st_size > 0
