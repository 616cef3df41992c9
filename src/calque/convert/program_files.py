"""The two files of a saved program, read while another process may be replacing them."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from calque.convert.errors import ConversionError
from calque.convert.saving import FORMAT, PROGRAM, VERSION, WEIGHTS, dtype_name, named_weights

DTYPES: dict[str, torch.dtype] = {
    dtype_name(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)
}
_LONGEST = 2**40


def read_files(directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns a program and its weights.

    Raises:
        ConversionError: a file is missing, damaged or has a different format.
        ImportError: safetensors is not installed.
    """
    while True:
        content = _read_program(directory / PROGRAM)
        try:
            return content, _read_weights(directory, content)
        except ConversionError:
            if _read_program(directory / PROGRAM) == content:
                raise


def _read_program(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConversionError(f"{path.name} is not a program that calque saved")
    if content.get("version") != VERSION:
        raise ConversionError(
            f"{path.name} has version {content.get('version')!r} instead of {VERSION}"
        )
    kinds = {"inputs": list, "operators": list, "weights": dict, "weights_sha256": str}
    for key, kind in kinds.items():
        if not isinstance(content.get(key), kind):
            raise ConversionError(f"{path.name}: {key} is missing or not a {kind.__name__}")
    if "outputs" not in content:
        raise ConversionError(f"{path.name}: outputs is missing")
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _read_weights(directory: Path, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load as parse  # pyright: ignore[reportMissingImports]

    path = directory / WEIGHTS
    try:
        data = _of_program(path, content)
        # The temporary name while they are being saved.
        with contextlib.suppress(FileNotFoundError):
            data = data or _of_program(directory / named_weights(content), content)
        data = data or _of_program(path, content)  # they may have been saved since
    except OSError as error:
        raise ConversionError(f"{path.name} cannot be read: {error}") from error
    if data is None:
        raise ConversionError(f"{path.name} is not the file that the program was saved with")
    try:
        weights = parse(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ConversionError(f"{path.name} cannot be read: {error}") from error
    for name, looks in content["weights"].items():
        if name not in weights:
            raise ConversionError(f"{path.name} has no weight {name}")
        shape, dtype = looks_of(looks, f"the weight {name}")
        if tuple(weights[name].shape) != shape or weights[name].dtype != dtype:
            raise ConversionError(f"the weight {name} has a different shape or dtype than stated")
    return weights


def _of_program(path: Path, content: dict[str, Any]) -> bytes | None:
    """Returns the content of a file; None if the program was saved with a different file."""
    data = path.read_bytes()
    return data if hashlib.sha256(data).hexdigest() == content["weights_sha256"] else None


def looks_of(content: object, where: str) -> tuple[tuple[int, ...], torch.dtype]:
    """Returns a tensor's shape and dtype as a file states them; `where` names it in errors."""
    shape = content.get("shape") if isinstance(content, dict) else None
    dtype = content.get("dtype") if isinstance(content, dict) else None
    fits = isinstance(shape, list) and all(type(n) is int and 0 <= n < _LONGEST for n in shape)
    if not fits or not isinstance(dtype, str) or dtype not in DTYPES:
        raise ConversionError(f"{where} has no valid shape and dtype")
    return tuple(shape), DTYPES[dtype]  # pyright: ignore[reportArgumentType]
