"""Graph networks of torch_geometric, small, on one random graph: `GRAPHS`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Model = tuple[nn.Module, dict[str, Any]]


class _Pooled(nn.Module):
    """A network on nodes, and what is read from each of two graphs."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> Any:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        x = self.body(x, edge_index)
        return self.head(global_mean_pool(x, batch, 2) + global_max_pool(x, batch, 2))


def _graph() -> dict[str, Any]:
    return {"x": torch.randn(12, 8), "edge_index": torch.randint(0, 12, (2, 40))}


def _network(kind: str, **settings: Any) -> Model:
    from torch_geometric.nn import models

    return getattr(models, kind)(8, 16, num_layers=2, out_channels=16, **settings), _graph()


def _pooled() -> Model:
    body, inputs = _network("GIN", norm="batch_norm")
    return _Pooled(body), {**inputs, "batch": torch.arange(12) // 6}


def _weighted() -> Model:
    from torch_geometric.nn import TransformerConv

    inputs = _graph()
    return TransformerConv(8, 4, heads=2, edge_dim=3), {**inputs, "edge_attr": torch.randn(40, 3)}


GRAPHS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: _network("GCN"),
    "sage": lambda: _network("GraphSAGE"),
    "gat": lambda: _network("GAT", heads=2, v2=True),
    "pna": lambda: _network(
        "PNA",
        aggregators=["mean", "max", "std"],
        scalers=["identity", "amplification"],
        deg=torch.tensor([0, 2, 4, 3, 3]),
    ),
    "gin_pooled": _pooled,
    "transformer_conv": _weighted,
}
