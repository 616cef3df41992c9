"""Bytes with a trailing checksum and version, to detect damage.

JAX's reader of exported programs does not validate its input: one wrong byte may crash the process
or make it hang. The seal is at the end, so that `jax.export.deserialize`, which ignores trailing
bytes, can also read sealed bytes.
"""

import hashlib
import struct

_MAGIC = b"\x89calque\n"
_VERSION = 1
_SEAL = struct.Struct("<Q32sI8s")
"""The length of the content, the SHA-256 of content and version, the version, and the magic number.
"""


def seal(content: bytes) -> bytes:
    """Returns the bytes with their seal."""
    return content + _SEAL.pack(len(content), _digest(content, _VERSION), _VERSION, _MAGIC)


def unseal(data: bytes | bytearray | memoryview) -> bytes:
    """Returns the bytes without their seal.

    Raises:
        TypeError: the argument is not bytes.
        ValueError: the seal is missing, has another version, or does not match the bytes.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f"load_exported expects the bytes of a program, not {type(data).__name__}: for a "
            "file, pass `pathlib.Path(path).read_bytes()`"
        )
    data = bytes(data)
    if len(data) < _SEAL.size or not data.endswith(_MAGIC):
        raise ValueError(
            f"these {len(data)} bytes are not a program that calque exported, or their end is "
            "missing or damaged: export the program again (for programs exported by jax.export, "
            "use jax.export.deserialize)"
        )
    content, (length, digest, version, _) = data[: -_SEAL.size], _SEAL.unpack(data[-_SEAL.size :])
    if length == len(content) and digest == _digest(content, version):
        if version == _VERSION:
            return content
        raise ValueError(
            f"this program has version {version} of calque's format, but this release reads "
            f"version {_VERSION}: load it with the release that wrote it, or export it again"
        )
    raise ValueError(
        f"the exported program is damaged: its {len(data)} bytes do not match their checksum; "
        "copy the file again, in binary mode, or export the program again"
    )


def _digest(content: bytes, version: int) -> bytes:
    return hashlib.sha256(content + version.to_bytes(4, "little")).digest()
