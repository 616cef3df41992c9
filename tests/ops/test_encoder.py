"""torch.nn's attention and encoder layers without gradients, where they take one fused operator."""

import copy
import itertools

import pytest
import torch
from torch import nn

import calque

CAUSAL = torch.ones(5, 5).triu(1).bool()
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
MASKS = {
    "none": {},
    "causal": {"attn_mask": CAUSAL},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
}


def placed(masks: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: mask.to("jax") for name, mask in masks.items()}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("weights", [{"need_weights": False}, {"average_attn_weights": False}, {}])
def test_attention_of_itself(masks: dict[str, torch.Tensor], weights: dict[str, bool]) -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    twin = copy.deepcopy(module).to("jax")
    x = torch.randn(2, 5, 8)
    y = x.to("jax")
    with torch.no_grad():
        want = module(x, x, x, **masks, **weights)
        got = twin(y, y, y, **placed(masks), **weights)
    for a, b in zip(want, got, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b.cpu(), a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("norm_first", "activation"), list(itertools.product([False, True], ["relu", "gelu"]))
)
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_encoder_layer(norm_first: bool, activation: str, masks: dict[str, torch.Tensor]) -> None:
    module = nn.TransformerEncoderLayer(
        8, 2, 12, activation=activation, norm_first=norm_first, batch_first=True
    ).eval()
    twin = copy.deepcopy(module).to("jax")
    x = torch.randn(2, 5, 8)
    renamed = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    masks = {renamed[name]: mask for name, mask in masks.items()}
    with torch.no_grad():
        want, got = module(x, **masks), twin(x.to("jax"), **placed(masks))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_padded_batch_goes_through_an_encoder_eagerly_and_in_jit() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    module = nn.TransformerEncoder(layer, 2).eval()
    twin = copy.deepcopy(module).to("jax")
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        want = module(x, src_key_padding_mask=PADDING)
        padding = PADDING.to("jax")
        for run in (twin, calque.jit(twin)):
            got = run(x.to("jax"), src_key_padding_mask=padding).cpu()
            torch.testing.assert_close(got[~PADDING], want[~PADDING], rtol=1e-5, atol=1e-5)
