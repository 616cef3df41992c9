"""A training loop with accelerate on the device "jax".

accelerate takes a device that it does not know by name from `ACCELERATE_TORCH_DEVICE`; the loop is
the one of its tutorial: gradients accumulated, clipped, a scheduler, and a checkpoint in between.

    pip install accelerate
    ACCELERATE_TORCH_DEVICE=jax python examples/accelerate_loop.py
"""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calque  # noqa: F401  (registers the device)

EPOCHS = 8


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    assert accelerator.device.type == "jax", "run it with ACCELERATE_TORCH_DEVICE=jax"
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * EPOCHS)
    x = torch.randn(128, 4)
    batches = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, batches, scheduler)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(EPOCHS):
            for x, y in batches:
                with accelerator.accumulate(model):
                    loss = (model(x) - y).square().mean()
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 10.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                losses.append(accelerator.gather(loss.detach()))
            if epoch == EPOCHS // 2:
                accelerator.save_state(folder)
                saved = [p.clone() for p in model.parameters()]
        accelerator.load_state(folder)
        assert all(map(torch.equal, model.parameters(), saved))
    first, last = torch.stack(losses[:8]).mean().item(), torch.stack(losses[-8:]).mean().item()
    assert last < first / 2, (first, last)
    print(f"loss {first:.3f} -> {last:.3f} on {loss.device}")


if __name__ == "__main__":
    main()
