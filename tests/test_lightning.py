"""`calque.lightning`, where Lightning is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices import devices

ROOT = Path(__file__).parent.parent

PROGRAM = """
from tests.conformance.torchvision_stub import make_importable
make_importable()
import warnings
warnings.simplefilter("ignore")
import lightning, torch
import calque.lightning
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear, self.seen = torch.nn.Linear(4, 1), set()
    def training_step(self, batch, index):
        x, y = batch
        found = self.linear(x)
        self.seen.add((found.dtype, found.device.type))
        return (found.float() - y).square().mean()
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)

x = torch.randn(32, 4)
batches = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)

def fit(**settings):
    trainer = lightning.Trainer(
        strategy="jax", accelerator="jax", max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, gradient_clip_val=1.0, **settings
    )
    model = Model()
    before = model.linear.weight.detach().clone()
    trainer.fit(model, batches, batches)
    assert model.linear.weight.dtype == torch.float32
    assert not torch.equal(model.linear.weight.cpu(), before)
    ((dtype, device),) = model.seen
    assert device == "jax"
    return dtype, getattr(trainer.precision_plugin, "scaler", None)

assert fit(precision="32-true") == (torch.float32, None)
assert fit(precision="bf16-mixed") == (torch.bfloat16, None)
own = torch.amp.GradScaler("jax", init_scale=64.0)
dtype, scaler = fit(plugins=MixedPrecision("16-mixed", "cuda", own))
assert dtype == torch.float16 and scaler is own and scaler.get_scale() == 64.0
plugin = lightning.Trainer(
    strategy="jax", accelerator="jax", precision="16-mixed", logger=False,
    enable_checkpointing=False,
).precision_plugin
assert plugin.device == "jax" and plugin.scaler.is_enabled()
"""


@pytest.mark.timeout(300)
def test_mixed_precision_is_that_of_the_device() -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("needs lightning")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT
    )
    assert found.returncode == 0, found.stderr[-4000:]


SPREAD = """
from tests.conformance.torchvision_stub import make_importable
make_importable()
import warnings
warnings.simplefilter("ignore")
import lightning, torch
import calque.lightning
from calque import sharding as sh
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear, self.found = torch.nn.Linear(16, 8), []
    def training_step(self, batch, index):
        x, y = batch
        loss = (self.linear(x) - y).square().mean()
        weight = self.linear.weight
        self.found.append(loss.item())
        self.lie = [one and one.spec for one in map(sh.placement, (x, weight))]
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

torch.manual_seed(0)
x = torch.randn(32, 16)
batches = DataLoader(TensorDataset(x, x[:, :8]), batch_size=16)

def fit(**settings):
    trainer = lightning.Trainer(
        max_epochs=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, gradient_clip_val=1.0, **settings
    )
    torch.manual_seed(0)
    model = Model()
    trainer.fit(model, batches)
    return model

P = sh.P
expected = fit(accelerator="cpu").found
own = calque.lightning.JaxStrategy(plan={"*.weight": P("tp")}, mesh=sh.mesh(dp=4, tp=2))
for strategy, weight in (("jax", P()), ("jax_fsdp", P("data")), (own, P("tp"))):
    model = fit(strategy=strategy, devices=8)
    assert max(abs(a - b) for a, b in zip(model.found, expected)) < 5e-7, strategy
    assert model.lie == [P("dp" if strategy is own else "data"), weight], model.lie
assert fit(strategy="jax").lie == [None, None]
try:
    fit(strategy="jax", accelerator="jax", devices=9)
except ValueError as error:
    assert "JAX has 8" in str(error)
else:
    raise AssertionError("nine of eight devices")
"""


@pytest.mark.timeout(300)
def test_batches_and_models_are_spread_over_several_devices() -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("needs lightning")
    found = subprocess.run(
        [sys.executable, "-c", SPREAD],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | devices(8),
    )
    assert found.returncode == 0, found.stderr[-4000:]


SEVERAL = """
from tests.conformance.torchvision_stub import make_importable
make_importable()
import tempfile, warnings
warnings.simplefilter("ignore")
import lightning, torch
import calque.lightning
from calque import sharding as sh
from calque.launching import communication
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear, self.found = torch.nn.Linear(16, 8), []
    def training_step(self, batch, index):
        x, y = batch
        loss = (self.linear(x) - y).square().mean()
        self.found.append(loss.item())
        placed = map(sh.placement, (x, self.linear.weight))
        self.split = [one is not None and one.is_split for one in placed]
        return loss
    def validation_step(self, batch, index):
        x, y = batch
        self.log("error", (self.linear(x) - y).abs().mean(), sync_dist=True)
    def predict_step(self, batch, index):
        return self.linear(batch[0])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

torch.manual_seed(0)
x = torch.randn(24, 16)
data = TensorDataset(x, x[:, :8])

def run(count, rank, folder, **settings):
    share = DistributedSampler(data, count, rank, shuffle=False)
    training = DataLoader(data, batch_size=8 // count, sampler=share)
    checking = DataLoader(data, batch_size=10 // count)  # does not divide by eight
    settings |= {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    torch.manual_seed(0)
    model = Model()
    kept = ModelCheckpoint(folder, monitor="error", save_last=True)
    lightning.Trainer(max_epochs=2, callbacks=[kept], **settings).fit(model, training, checking)
    again = Model()
    trainer = lightning.Trainer(max_epochs=3, enable_checkpointing=False, **settings)
    trainer.fit(again, training, checking, ckpt_path=f"{folder}/last.ckpt")
    (error,) = trainer.validate(again, checking, verbose=False)
    rows = sum(one.sum().item() for one in trainer.predict(again, checking))
    return [*model.found, *again.found, error["error"], rows], model

expected, _ = run(1, 0, tempfile.mkdtemp(), accelerator="cpu")
own = calque.lightning.JaxStrategy
assert (own().global_rank, own().world_size) == (own().local_rank, 2)
for strategy, is_split in (("jax", False), ("jax_fsdp", True)):
    folder = communication.broadcast(tempfile.mkdtemp())
    found, model = run(2, own().global_rank, folder, strategy=strategy, devices=4, num_nodes=2)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-5, strategy
    assert model.split == [True, is_split]
try:
    lightning.Trainer(strategy="jax", devices=4, logger=False)
except ValueError as error:
    assert "Write devices=8" in str(error)
else:
    raise AssertionError("half of the devices")
"""


@pytest.mark.timeout(300)
def test_several_processes_train_one_model(tmp_path: Path) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("needs lightning")
    (tmp_path / "program.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{SEVERAL}"
    )
    command = [sys.executable, "-m", "calque", "launch", "-n", "2", "--devices", "4", "program.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr[-4000:]
