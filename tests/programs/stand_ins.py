"""Data for programs that would fetch theirs: made here, the same in every run."""

import pickle
from collections.abc import Callable
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch

TEXT = "\n".join(topics.topics[name] for name in sorted(topics.topics))
"""The manual of Python, as it comes with Python."""


class Digits(torch.utils.data.Dataset):
    """In the place of `torchvision.datasets.MNIST`: a bright bar at a place that is the class."""

    def __init__(
        self,
        root: Any = None,
        train: bool = True,
        transform: Callable[..., Any] | None = None,
        target_transform: Callable[..., Any] | None = None,
        download: bool = False,
    ) -> None:
        random = np.random.default_rng(int(train))
        count = 1024 if train else 256
        self.targets = torch.from_numpy(random.integers(0, 10, count))
        images = random.integers(0, 64, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, self.targets.tolist(), strict=True):
            image[4:24, 2 * label + 4 : 2 * label + 7] = 230
        self.data = torch.from_numpy(images)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        image = Image.fromarray(self.data[index].numpy())
        return (self.transform(image) if self.transform else image), int(self.targets[index])


def few_fakes(fakes: type) -> Callable[..., Any]:
    """`torchvision.datasets.FakeData` of fewer images than it has by default."""

    def make(size: int = 1000, *args: Any, **kwargs: Any) -> Any:
        return fakes(min(size, 64), *args, **kwargs)

    return make


def write_nanogpt(folder: Path) -> None:
    """The text by its letters, in the three files that nanoGPT's `prepare.py` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    text = TEXT[:100_000]
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    ids = np.array([number[letter] for letter in text], dtype=np.uint16)
    ids[:90_000].tofile(folder / "train.bin")
    ids[90_000:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": number}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
