"""A graph network on graphs of different sizes, in batches of one shape.

Every new shape is a new compilation. So graphs are padded to one number of nodes, and a mask says
which nodes exist: sums, means and softmaxes leave the others out. Here it learns whether a graph
has a triangle.

    python examples/graph_network.py [--steps 300]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import calque

NODES = 12


def graphs(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Adjacency (count, NODES, NODES), mask (count, NODES), and whether there is a triangle."""
    sizes = torch.randint(5, NODES + 1, (count, 1))
    mask = torch.arange(NODES) < sizes
    both = mask[:, None, :] & mask[:, :, None]
    density = 1.6 / sizes[:, :, None]
    upper = torch.triu(torch.rand(count, NODES, NODES) < density, diagonal=1) & both
    adjacency = (upper | upper.mT).float()
    triangles = (adjacency @ adjacency @ adjacency).diagonal(dim1=1, dim2=2).sum(1)
    return adjacency, mask, (triangles > 0).long()


class Layer(nn.Module):
    """Each node attends to its neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.update = nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """(batch, NODES, width) and (batch, NODES, NODES) to (batch, NODES, width)."""
        scores = self.query(x) @ self.key(x).mT / x.shape[2] ** 0.5
        scores = scores.masked_fill(adjacency == 0, -1e9)
        weights = scores.softmax(-1) * adjacency  # a node without neighbours gets zeros
        return x + F.relu(self.update(torch.cat([x, weights @ self.value(x)], dim=2)))


class GraphNetwork(nn.Module):
    """Random features of the nodes, layers, and the sum over the nodes that exist."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.names = nn.Parameter(torch.randn(NODES, width))
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width + 3, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, adjacency: Tensor, mask: Tensor) -> Tensor:
        """(batch, NODES, NODES) and (batch, NODES) to (batch, 2)."""
        x = self.names.expand(len(adjacency), -1, -1)
        for layer in self.layers:
            x = layer(x, adjacency)
        pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        walks = adjacency @ adjacency
        counts = [(walks * adjacency).sum((1, 2)), walks.sum((1, 2)), adjacency.sum((1, 2))]
        return self.head(torch.cat([pooled, torch.stack(counts, dim=1) / NODES], dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = GraphNetwork().to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    @calque.jit
    def step(adjacency: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(model(adjacency, mask), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [step(*(t.to("jax") for t in graphs(64))) for _ in range(steps)]
    first, last = losses[0].item(), torch.stack(losses[-5:]).mean().item()
    adjacency, mask, labels = (t.to("jax") for t in graphs(512))
    with torch.no_grad():
        right = (model(adjacency, mask).argmax(1) == labels).float().mean().item()
        # What stands where no node is does not matter.
        padded = torch.where(mask[:, :, None] & mask[:, None, :], adjacency, 0.0)
        assert torch.equal(model(padded, mask), model(adjacency, mask))
    print(f"loss {first:.2f} -> {last:.2f}; {right:.1%} of new graphs right")
    assert step.history == ["first call"]  # graphs of all sizes, one program
    assert last < first


if __name__ == "__main__":
    main()
