"""Models of other packages as JSON and safetensors, run on JAX on inputs never seen."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calque
from calque.convert import load, save
from calque.tracing.graph.templates import take_apart
from tests.conformance.tracecheck import made

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default:::(timm|transformers|torch)"),
]
pytest.importorskip("safetensors")

SAVED = (
    *("nn/lstm", "nn/gru", "timm/resnet10t", "timm/cait_xxs24_224", "timm/ghostnet_050"),
    *("timm/xcit_nano_12_p16_224", "torch_geometric/pna"),
    *("transformers/dinov3_vit", "transformers/audio_spectrogram"),
    *("timm/test_convnext", "timm/test_vit", "timm/eva02_tiny_patch14_224", "timm/densenet121"),
    *("timm/convit_tiny", "timm/visformer_tiny", "timm/starnet_s1"),
    *(
        "nn/transformer",
        "transformers/llava",
        "transformers/qwen3",
        "transformers/phi",
        "transformers/pegasus",
        "diffusers/flux",
    ),
)


def round_trip(name: str, directory: Path) -> None:
    """Save a model, load it, and compare what it computes.

    Raises:
        AssertionError: it is something else.
    """
    model, inputs, fresh = made(name)
    with torch.no_grad():
        model(**copy.deepcopy(inputs))
        save(calque.record(model, **copy.deepcopy(inputs)), directory)
        expected = model(**copy.deepcopy(fresh))
    arrays: Any = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.numpy(), fresh)
    found = [np.asarray(leaf) for leaf in _leaves(load(directory)(**arrays))]
    plain = isinstance(expected, torch.Tensor) or type(expected) in (tuple, list, dict)
    parts = _leaves(expected) if plain else take_apart(expected)[1]  # each tensor once
    tensors = [t.detach().numpy() for t in parts if isinstance(t, torch.Tensor)]
    for a, b in zip(found, tensors, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(b).max())))


def _leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    package = name.partition("/")[0]
    if package != "nn":
        pytest.importorskip(package)
    round_trip(name, tmp_path)
