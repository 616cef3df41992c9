"""Lightning's Trainer on the device "jax".

`import calque.lightning` enters the device into Lightning's registries of accelerators and
strategies; `strategy="jax"` then chooses it.

    pip install lightning
    python examples/lightning_fit.py
"""

import tempfile
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calque.lightning  # noqa: F401  (registers the device, too)

EPOCHS = 6


class Sum(lightning.LightningModule):
    """Learns the sum of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return (self.net(x) - y).square().mean()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        assert self.device.type == batch[0].device.type == "jax"
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validation", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)]


def batches(count: int) -> DataLoader:
    x = torch.randn(count, 4)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            strategy="jax",
            accelerator="jax",
            max_epochs=EPOCHS,
            gradient_clip_val=10.0,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model, held_out = Sum(), batches(64)
        (before,) = trainer.validate(model, held_out, verbose=False)
        trainer.fit(model, batches(128), held_out)
        (after,) = trainer.validate(model, held_out, verbose=False)
        checkpoint = trainer.checkpoint_callback.best_model_path
        again = Sum.load_from_checkpoint(checkpoint, map_location="jax")
        assert all(map(torch.equal, again.to("jax").parameters(), model.to("jax").parameters()))
    assert after["validation"] < before["validation"] / 2, (before, after)
    losses = f"{before['validation']:.3f} -> {after['validation']:.3f}"
    print(f"loss {losses} on {trainer.strategy.root_device}")


if __name__ == "__main__":
    main()
