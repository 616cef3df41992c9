"""Files in LEAF's format become clients' examples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calque.errors import ClientError
from calque.federated import learning


def write(path: Path, data: dict[str, dict[str, list]], counts: list[int] | None = None) -> None:
    whole = {
        "users": list(data),
        "num_samples": counts or [len(one["y"]) for one in data.values()],
        "user_data": data,
    }
    path.write_text(json.dumps(whole))


def numbers(count: int, start: float = 0.0) -> dict[str, list]:
    return {"x": [[start + i, 0.5] for i in range(count)], "y": [i % 2 for i in range(count)]}


def test_all_files_of_a_directory_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "part_1.json", {"c": numbers(1)})
    write(tmp_path / "part_0.json", {"a": numbers(3), "b": numbers(2, start=10.0)})
    found = learning.load_leaf(tmp_path)
    assert list(found) == ["a", "b", "c"]
    np.testing.assert_array_equal(found["b"]["x"], [[10, 0.5], [11, 0.5]])
    assert (found["a"]["x"].dtype, found["a"]["y"].dtype) == (np.float32, np.int32)

    import torch

    process = learning.fed_avg(torch.nn.Linear(2, 2))
    _, metrics = process.next(process.initialize(), list(found.values()))
    assert int(metrics["examples"]) == 6


def test_text_is_made_numbers_by_the_user(tmp_path: Path) -> None:
    write(tmp_path / "text.json", {"a": {"x": ["abc", "bcd"], "y": ["d", "e"]}})
    with pytest.raises(ClientError, match="not numbers"):
        learning.load_leaf(tmp_path / "text.json")
    found = learning.load_leaf(
        tmp_path / "text.json",
        x=lambda lines: [[ord(c) - 97 for c in line] for line in lines],
        y=lambda chars: [ord(c) - 97 for c in chars],
    )
    np.testing.assert_array_equal(found["a"]["x"], [[0, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(found["a"]["y"], [3, 4])


@pytest.mark.parametrize(
    ("data", "counts", "message"),
    [
        ({"a": numbers(2)}, [3], "has .2. examples, not 3"),
        ({"a": {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}}, None, "cannot be converted to an array"),
        ({"a": {"x": [[1.0]], "y": [3_000_000_000]}}, None, "'a' have integers that int32 cannot"),
    ],
)
def test_files_that_are_wrong_name_the_client(
    tmp_path: Path, data: Any, counts: Any, message: str
) -> None:
    write(tmp_path / "one.json", data, counts)
    with pytest.raises(ClientError, match=message):
        learning.load_leaf(tmp_path)


def test_a_client_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"a": numbers(2)})
    write(tmp_path / "b.json", {"a": numbers(2)})
    with pytest.raises(ClientError, match="in another file"):
        learning.load_leaf(tmp_path)


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no files"):
        learning.load_leaf(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"users": ["a"], "num_samples": [1]}', "[]"])
def test_a_file_in_another_format_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json is not in LEAF's format"):
        learning.load_leaf(tmp_path)


def test_clients_with_whole_numbers_or_no_examples_are_like_the_others(tmp_path: Path) -> None:
    whole = {"x": [[1, 2]], "y": [1]}
    write(tmp_path / "a.json", {"a": whole, "b": numbers(2), "c": {"x": [], "y": []}})
    found = learning.load_leaf(tmp_path / "a.json")
    assert [one["x"].shape for one in found.values()] == [(1, 2), (2, 2), (0, 2)]
    assert {one["x"].dtype.name for one in found.values()} == {"float32"}
    assert {one["y"].dtype.name for one in found.values()} == {"int32"}
    write(tmp_path / "a.json", {"a": {"x": [[2**24 + 1, 0]], "y": [1]}, "b": numbers(2)})
    with pytest.raises(ClientError, match="'a' have integers that float32 cannot hold"):
        learning.load_leaf(tmp_path / "a.json")


def test_a_number_that_is_infinite_in_float32_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"a": {"x": [[1e300]], "y": [1]}})
    with pytest.raises(ClientError, match="'a' have numbers that float32 cannot hold"):
        learning.load_leaf(tmp_path / "a.json")
