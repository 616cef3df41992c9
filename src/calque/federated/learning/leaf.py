"""Data sets in the JSON format of LEAF (Caldas et al. 2018)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calque.errors import ClientError, with_user_frames


@with_user_frames
def load_leaf(
    path: str | Path,
    x: Callable[[list[Any]], Any] = np.asarray,
    y: Callable[[list[Any]], Any] = np.asarray,
) -> dict[str, dict[str, Any]]:
    """Returns the examples of each client, from a LEAF file or all LEAF files of a directory.

    A file has `users`, `num_samples`, and `user_data` with lists `x` and `y` for each user.

    Args:
        path: a file, or a directory with files `*.json`, such as LEAF's `data/train`.
        x: a function that converts the list of a client's examples, which may be text, to an array.
            By default, numbers become float32 or int32; float32 for all clients if one has floats.
        y: the same, for the labels.

    Returns:
        A dict from the names of clients to dicts of arrays `x` and `y`; pass its
        `list(….values())` to a learning process.

    Raises:
        FileNotFoundError: the file does not exist, or the directory has no such files.
        ValueError: a file has a different format.
        ClientError: a client's number of examples differs from `num_samples`, it is in two files,
            or its examples cannot be converted to an array of float32 or int32.
    """
    path = Path(path)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"there are no files *.json in {path}")
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for user, count, data in _users(file):
            if user in found:
                raise ClientError(f"client {user!r} of {file} is also in another file")
            arrays = {"x": _array(x, data["x"], user), "y": _array(y, data["y"], user)}
            lengths = {len(array) for array in arrays.values()}
            if lengths != {count}:
                raise ClientError(
                    f"client {user!r} of {file} has {sorted(lengths)} examples, not {count}"
                )
            found[user] = arrays
    for name in ("x", "y"):
        _make_alike(found, name)
    return found


def _make_alike(clients: dict[str, dict[str, Any]], name: str) -> None:
    """Give all clients' arrays the same dtype, and empty arrays the shape of others.

    In JSON, a client's floats may all be written as integers, and empty lists have no dtype.
    """
    whole = [arrays[name] for arrays in clients.values() if len(arrays[name])]
    if not whole:
        return
    floats = {array.dtype for array in whole} > {np.dtype(np.float32)}
    none = np.zeros((0, *whole[0].shape[1:]), np.float32 if floats else whole[0].dtype)
    for user, arrays in clients.items():
        array = arrays[name]
        if not len(array):
            arrays[name] = none
        elif floats and array.dtype == np.int32:
            arrays[name] = array.astype(np.float32)
            if (arrays[name] != array).any():
                raise ClientError(
                    f"the examples of client {user!r} have integers that float32 cannot hold, "
                    "but other clients have floats.\nPass a function as x= or y= that converts "
                    "them."
                )


def _users(file: Path) -> list[tuple[str, int, dict[str, Any]]]:
    """Returns the name of each client, its number of examples, and the examples.

    Raises:
        ValueError: the file is not in LEAF's format.
    """
    try:
        whole = json.loads(file.read_text())
        data = whole["user_data"]
        return [
            (user, count, {"x": data[user]["x"], "y": data[user]["y"]})
            for user, count in zip(whole["users"], whole["num_samples"], strict=True)
        ]
    except (ValueError, KeyError, TypeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{file} is not in LEAF's format: {what}.\n"
            "A LEAF file has users, num_samples, and user_data with x and y for each user."
        ) from None


def _array(make: Callable[[list[Any]], Any], examples: list[Any], user: str) -> np.ndarray:
    try:
        array = np.asarray(make(examples))
    except ValueError as error:
        raise ClientError(
            f"the examples of client {user!r} cannot be converted to an array: {error}"
        ) from None
    if array.dtype.kind not in "biuf":
        raise ClientError(
            f"the examples of client {user!r} are {array.dtype}, not numbers.\nPass a function "
            "as x= or y= that converts them to numbers."
        )
    narrow = {"float64": np.float32, "int64": np.int32}.get(array.dtype.name)
    if narrow is np.int32 and array.size and (array != array.astype(np.int32)).any():
        raise ClientError(
            f"the examples of client {user!r} have integers that int32 cannot hold.\n"
            "Pass a function as x= or y= that converts them to smaller ones."
        )
    if narrow is None:
        return array
    with np.errstate(over="ignore"):
        found = array.astype(narrow)
    if narrow is np.float32 and not np.isfinite(found[np.isfinite(array)]).all():
        raise ClientError(
            f"the examples of client {user!r} have numbers that float32 cannot hold.\n"
            "Pass a function as x= or y= that converts them to smaller ones."
        )
    return found
