"""Models that others wrote, small and with random weights: `MODELS` maps a name to its maker.

timm, transformers, torchvision, diffusers and torch_geometric are optional: where one is missing,
its models are not in the table.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.conformance import (
    models_generative,
    models_graphs,
    models_senses,
    models_timm,
    models_transformers,
    models_vision,
)
from tests.conformance.torchvision_stub import make_importable
from tests.conformance.transformers_settings import ids

Model = tuple[nn.Module, dict[str, Any]]
MODELS: dict[str, Callable[[], Model]] = {}

make_importable()  # transformers and timm import torchvision if it is installed

if importlib.util.find_spec("timm") is not None:
    for name, settings in models_timm.TIMM.items():
        MODELS[f"timm/{name}"] = partial(models_timm.make, name, **settings)

if importlib.util.find_spec("transformers") is not None:
    for name, row in (models_transformers.TRANSFORMERS | models_senses.SENSES).items():
        MODELS[f"transformers/{name}"] = partial(models_transformers.make, *row)

if models_vision.usable():
    MODELS |= {f"torchvision/{name}": maker for name, maker in models_vision.VISION.items()}

for package, makers in (
    ("diffusers", models_generative.GENERATIVE),
    ("torch_geometric", models_graphs.GRAPHS),
):
    if importlib.util.find_spec(package) is not None:
        MODELS |= {f"{package}/{name}": maker for name, maker in makers.items()}


class _Sequences(nn.Module):
    """A classifier over a recurrent layer."""

    def __init__(self, kind: type, **kwargs: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.layer = kind(16, 24, batch_first=True, **kwargs)
        self.head = nn.LazyLinear(5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out, _ = self.layer(self.embedding(ids))
        return self.head(out[:, -1])


class _Translator(nn.Module):
    """PyTorch's own Transformer, with both masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 60)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        padding = source == 3
        return self.head(
            self.body(
                self.embedding(source),
                self.embedding(target),
                tgt_mask=mask,
                tgt_is_causal=True,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
        )


def _sequences(kind: type, **kwargs: Any) -> Model:
    model, inputs = _Sequences(kind, **kwargs), {"ids": ids()}
    model(**inputs)
    return model, inputs


MODELS |= {
    "nn/lstm": lambda: _sequences(nn.LSTM),
    "nn/lstm_deep": lambda: _sequences(nn.LSTM, num_layers=2, bidirectional=True),
    "nn/lstm_projected": lambda: _sequences(nn.LSTM, proj_size=8),
    "nn/gru": lambda: _sequences(nn.GRU, num_layers=2),
    "nn/rnn": lambda: _sequences(nn.RNN, nonlinearity="relu"),
    "nn/transformer": lambda: (_Translator(), {"source": ids(), "target": ids(2, 7)}),
}
