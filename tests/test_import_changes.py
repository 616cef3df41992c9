"""The page that lists what `import calque` changes is right."""

from pathlib import Path

import pytest
import torch

from tests import new_process

ROOT = Path(__file__).parent.parent
TESTED = (ROOT / "constraints.txt").read_text().splitlines()
IS_TESTED = f"torch=={torch.__version__.split('+')[0]}" in TESTED


@pytest.mark.skipif(not IS_TESTED, reason="the page is of the versions in constraints.txt")
def test_the_page_lists_what_an_import_changes() -> None:
    script = ROOT / "docs" / "import_changes.py"
    done = new_process.run(script, filter="ignore")
    assert done.returncode == 0, done.stderr
    table = done.stdout
    assert (
        table.strip() == (ROOT / "docs/import-changes.md").read_text().partition("-->\n")[2].strip()
    )
