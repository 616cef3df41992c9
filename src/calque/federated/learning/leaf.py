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
    """The examples of each client, from a file of LEAF's or all files of a directory.

    A file has `users`, `num_samples`, and `user_data` with lists `x` and `y` for each user.

    Args:
        path: a file, or a directory with files `*.json`, such as LEAF's `data/train`.
        x: makes an array of the list of a client's examples, of text for instance; numbers become
            float32 and int32 by themselves.
        y: likewise, of their labels.

    Returns:
        By the client's name, a dict of arrays `x` and `y`; `list(….values())` is what processes
        take.

    Raises:
        FileNotFoundError: there is no such file, or none in the directory.
        ClientError: a client has another number of examples than the file says, is in two files,
            or its examples make no array.
    """
    path = Path(path)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"there are no files *.json in {path}")
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        whole = json.loads(file.read_text())
        for user, count in zip(whole["users"], whole["num_samples"], strict=True):
            if user in found:
                raise ClientError(f"client {user!r} of {file} is in another file, too")
            data = whole["user_data"][user]
            arrays = {"x": _array(x, data["x"], user), "y": _array(y, data["y"], user)}
            lengths = {len(array) for array in arrays.values()}
            if lengths != {count}:
                raise ClientError(
                    f"client {user!r} of {file} has {sorted(lengths)} examples, not {count}"
                )
            found[user] = arrays
    return found


def _array(make: Callable[[list[Any]], Any], examples: list[Any], user: str) -> np.ndarray:
    try:
        array = np.asarray(make(examples))
    except ValueError as error:
        raise ClientError(f"the examples of client {user!r} make no array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ClientError(
            f"the examples of client {user!r} are {array.dtype}, no numbers.\n"
            "Pass x= or y=, a function that makes numbers of them."
        )
    narrow = {"float64": np.float32, "int64": np.int32}.get(array.dtype.name)
    return array if narrow is None else array.astype(narrow)
