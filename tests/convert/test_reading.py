"""Values that a program has read are compared by what is loaded from its files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import calque
from calque.convert import ConversionError, load, save
from calque.convert.digests import DIGEST
from calque.convert.saving import PROGRAM

pytest.importorskip("safetensors")
START = torch.arange(4.0)


def formatted(x: Tensor) -> Tensor:
    return x * len(f"{x.sum():.1f}")


READING: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "equal": (lambda x, y: x + 1 if torch.equal(x, y) else x, (START, START), (START, START + 1)),
    "allclose": (
        lambda x, y: x + 1 if torch.allclose(x, y, atol=0.5) else x,
        (START, START + 0.1),
        (START, START + 1),
    ),
    "in": (lambda x: x * 2 if 3 in x else x, (START,), (START * 2 + 0.5,)),
    "a number's text": (formatted, (START,), (START * 100,)),
    "numpy": (lambda x: x * x.numpy().max().item(), (START,), (START * 2,)),
    "is_nonzero": (lambda x: x * 2 if torch.is_nonzero(x.sum()) else x, (START,), (START * 0,)),
}


@pytest.mark.parametrize("name", READING)
def test_a_read_is_compared_whatever_reads(name: str, tmp_path: Path) -> None:
    program, given, others = READING[name]
    given = tuple(t.clone() for t in given)
    save(calque.record(program, *given), tmp_path)
    loaded = load(tmp_path)
    expected = program(*given).numpy()
    np.testing.assert_allclose(np.asarray(loaded(*(t.numpy() for t in given))), expected)
    with pytest.raises(calque.TraceError, match=r"test_reading.py:\d+.*the program was recorded"):
        loaded(*(t.numpy() for t in others))


def test_masks_of_an_encoder_are_compared(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, mask = torch.randn(2, 3, 8), torch.tensor([[True, False, False], [False, False, True]])

    def program(x: Tensor, mask: Tensor) -> Tensor:
        return encoder(x, src_key_padding_mask=mask)

    with torch.no_grad():
        save(calque.record(program, x, mask), tmp_path)
        expected = program(x, mask).numpy()
    loaded = load(tmp_path)
    found = np.asarray(loaded(x.numpy(), mask.numpy()))
    np.testing.assert_allclose(found[~mask], expected[~mask], rtol=1e-4, atol=1e-5)
    with pytest.raises(calque.TraceError, match="was False .* is True now"):
        loaded(x.numpy(), np.array([[False, False, True], [False, False, False]]))


@pytest.mark.parametrize("spec", ["999999d", 3, "{x.__class__}", None])
def test_a_format_of_a_file_is_that_of_a_number(spec: Any, tmp_path: Path) -> None:
    save(calque.record(formatted, START), tmp_path)
    told = json.loads((tmp_path / PROGRAM).read_text())
    (read,) = [entry for entry in told["operators"] if entry["op"] == "read"]
    assert read["format"] == ".1f"
    read["format"] = spec
    del told[DIGEST]  # intentionally changed
    (tmp_path / PROGRAM).write_text(json.dumps(told))
    if spec is None:
        with pytest.raises(calque.TraceError, match="is 6.0 now"):
            load(tmp_path)(START.numpy())
    else:
        with pytest.raises(ConversionError, match="a format that does not apply to numbers"):
            load(tmp_path)
