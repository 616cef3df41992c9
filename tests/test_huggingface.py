"""`import calque.huggingface`, in a process of its own: what it enters stays in the libraries."""

import importlib.util
import os
from pathlib import Path

import pytest

from tests import new_process

ROOT = Path(__file__).parent.parent

PROGRAM = """
import tempfile
import torch
from tests.conformance.torchvision_stub import make_importable
make_importable()
import calque.huggingface
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

assert Accelerator().device.type == "jax"
AcceleratorState._reset_state(True)
try:
    Accelerator(mixed_precision="fp16")
except ValueError as error:
    assert 'mixed_precision="bf16"' in error.__notes__[0]
else:
    raise AssertionError("fp16 is refused")
AcceleratorState._reset_state(True)
accelerator = Accelerator(dynamo_backend="calque")
assert accelerator.state.dynamo_plugin.backend.value == "CALQUE"
AcceleratorState._reset_state(True)

torch.manual_seed(0)
config = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=16, max_position_embeddings=8)
tokens = torch.randint(3, 30, (16, 4))
data = [{"input_ids": row, "labels": (row[0] < 15).long()} for row in tokens]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=2, per_device_train_batch_size=16, bf16=True, learning_rate=1e-2,
        torch_compile_backend="calque", report_to=[], disable_tqdm=True, save_strategy="no")
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data)
    before = {name: p.detach().cpu().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
assert arguments.device.type == "jax"
moved = [not torch.equal(p.cpu(), before[n]) for n, p in trainer.model.named_parameters()]
assert any(moved), "a step was made"
print("trained")
"""


@pytest.mark.timeout(600)
def test_accelerate_and_transformers_take_the_device() -> None:
    for name in ("accelerate", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = new_process.run(PROGRAM, cwd=ROOT, env=environment, timeout=580)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("trained")
