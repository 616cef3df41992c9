"""The page that lists what `import calque` changes is right."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
TESTED = (ROOT / "constraints.txt").read_text().splitlines()
IS_TESTED = f"torch=={torch.__version__.split('+')[0]}" in TESTED


@pytest.mark.skipif(not IS_TESTED, reason="the page is of the versions in constraints.txt")
def test_the_page_lists_what_an_import_changes() -> None:
    script = ROOT / "docs" / "import_changes.py"
    command = [sys.executable, "-W", "ignore", str(script)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (
        table.strip() == (ROOT / "docs/import-changes.md").read_text().partition("-->\n")[2].strip()
    )
