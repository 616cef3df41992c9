import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.alike import same_random_numbers


def _drawn(device: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    x = torch.full((4, 3), 0.5, device=device)
    in_place = torch.empty(4, 3, device=device)
    return [
        torch.randn(2, 3, device=device),
        torch.randint(10, (5,), device=device),
        torch.randn_like(x),
        torch.bernoulli(x),
        torch.multinomial(x, 2),
        in_place.uniform_(-1, 1),
        F.dropout(x),
        nn.Linear(3, 2, device=device).weight.detach(),
        torch.distributions.Categorical(probs=x).sample(),
    ]


def test_programs_draw_the_same_numbers_on_every_device() -> None:
    plain = torch.randn
    with same_random_numbers():
        theirs, ours = _drawn("cpu"), _drawn("jax")
    assert all(tensor.device.type == "jax" for tensor in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.cpu(), other)
    assert torch.randn is plain


def test_nothing_is_dropped_out() -> None:
    x = torch.randn(2, 5, 8)
    with same_random_numbers():
        layers = [
            nn.Dropout(0.9),
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.9, batch_first=True),
            nn.LSTM(8, 8, 2, dropout=0.9),
        ]
        for layer in layers:
            result, again = layer(x), copy.deepcopy(layer).eval()(x)
            if isinstance(result, tuple):
                result, again = result[0], again[0]
            torch.testing.assert_close(result, again, rtol=1e-4, atol=1e-5)
