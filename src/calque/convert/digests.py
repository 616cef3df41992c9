"""The digest of `program.json`, which detects damage to the file."""

import hashlib
import json
from typing import Any

from calque.convert.errors import ConversionError

DIGEST = "program_sha256"


def digest(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of everything but the digest itself, independent of line breaks."""
    rest = {key: value for key, value in content.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()


def require_whole(content: dict[str, Any]) -> None:
    """Raise ConversionError if there is a digest and it does not match.

    Raises:
        ConversionError: it belongs to a different program.
    """
    if DIGEST in content and content[DIGEST] != digest(content):
        raise ConversionError(
            f"program.json has changed since it was saved: its {DIGEST} belongs to another "
            f"program. Copy the file again; if it was changed on purpose, remove {DIGEST}"
        )
