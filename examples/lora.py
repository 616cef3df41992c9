"""Fine-tune a language model with LoRA, as a configuration says.

Two small matrices beside each chosen layer are trained; the layer itself stays as it is. The model
is a Llama made from its configuration, with random weights, that learns to count.

    pip install transformers
    python examples/lora.py [--steps 100]
"""

import argparse
import tomllib

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import calque

CONFIG = """
[model]
vocab_size = 64
hidden_size = 48
intermediate_size = 96
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 32

[lora]
rank = 8
alpha = 16
layers = ["q_proj", "v_proj", "down_proj", "lm_head"]

[training]
learning_rate = 1e-2
batch = 16
length = 16
"""


class LoRA(nn.Module):
    """A linear layer that is kept, and a product of two narrow ones that is added."""

    def __init__(self, kept: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.kept = kept.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, kept.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(kept.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """As `kept`."""
        return self.kept(x) + self.scale * F.linear(F.linear(x, self.down), self.up)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One linear layer that computes the same."""
        self.kept.weight += self.scale * self.up @ self.down
        return self.kept


def replaced(model: nn.Module, names: list[str], by: type, make: object) -> list[nn.Module]:
    """Put `make(layer)` in the place of the layers of these names; gives what was put there."""
    chosen = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if name in names and isinstance(layer, by)
    ]
    for parent, name, layer in chosen:
        setattr(parent, name, make(layer))
    return [getattr(parent, name) for parent, name, _ in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    config = tomllib.loads(CONFIG)
    lora, training = config["lora"], config["training"]
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**config["model"], use_cache=False))
    model.requires_grad_(False)
    replaced(
        model, lora["layers"], nn.Linear, lambda layer: LoRA(layer, lora["rank"], lora["alpha"])
    )
    model.to("jax")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    kept = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=training["learning_rate"])

    @calque.jit
    def step(tokens: Tensor) -> Tensor:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def batch() -> Tensor:
        starts = torch.randint(config["model"]["vocab_size"], (training["batch"], 1))
        counted = starts + torch.arange(training["length"])
        return (counted % config["model"]["vocab_size"]).to("jax")

    losses = [step(batch()) for _ in range(steps)]
    first, last = losses[0].item(), torch.stack(losses[-5:]).mean().item()
    share = sum(p.numel() for p in trained.values()) / sum(p.numel() for p in model.parameters())
    print(f"loss {first:.2f} -> {last:.2f} with {share:.0%} of the parameters trained")
    assert last < first
    assert all(torch.equal(p, kept[n]) for n, p in model.named_parameters() if n in kept)
    tokens = batch()
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        replaced(model, lora["layers"], LoRA, LoRA.merged)
        torch.testing.assert_close(model(input_ids=tokens).logits, before, rtol=1e-3, atol=1e-3)
    print(f"merged: {sum(isinstance(m, LoRA) for m in model.modules())} adapters are left")


if __name__ == "__main__":
    main()
