"""Hugging Face's Trainer on the device "jax".

The Trainer takes its device from accelerate, and accelerate takes one that it does not know by name
from `ACCELERATE_TORCH_DEVICE`. A small BERT with random weights learns whether a token occurs.

    pip install transformers accelerate
    ACCELERATE_TORCH_DEVICE=jax python examples/hf_trainer.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import calque  # noqa: F401  (registers the device)

STEPS = 30


class Sentences(Dataset):
    """Random tokens, and whether the first of them is one of the first 30."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(3, 60, (count, 8))
        self.labels = (self.tokens[:, 0] < 30).long()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "output_dir": folder,
            "per_device_train_batch_size": 32,
            "learning_rate": 5e-3,
            "logging_steps": 10,
            "save_steps": 20,
            "disable_tqdm": True,
            "report_to": [],
        }

        def trainer(steps: int) -> Trainer:
            return Trainer(
                BertForSequenceClassification(config),
                TrainingArguments(max_steps=steps, **settings),
                train_dataset=Sentences(256),
                eval_dataset=Sentences(64),
            )

        first = trainer(STEPS - 10)
        assert first.args.device.type == "jax", "run it with ACCELERATE_TORCH_DEVICE=jax"
        before = first.evaluate()["eval_loss"]
        first.train()
        second = trainer(STEPS)  # goes on from the checkpoint of step 20
        second.train(resume_from_checkpoint=True)
        after = second.evaluate()["eval_loss"]
        assert next(second.model.parameters()).device.type == "jax"
        assert second.state.global_step == STEPS
        assert after < before / 2, (before, after)
        print(f"loss {before:.3f} -> {after:.3f} in {STEPS} steps on {second.args.device}")


if __name__ == "__main__":
    main()
