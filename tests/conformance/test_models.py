"""Models of others: eagerly, in jit and compiled, in evaluation and in training.

`pip install --no-deps timm transformers torchvision diffusers torch_geometric` and what they
import, beside the tested PyTorch; what is missing is not in the table. `CALQUE_SAMPLE` and
`CALQUE_SEED` choose a part.
"""

import copy
import os
import random

import pytest

from calque import TraceError
from tests.conformance.known_models import reason
from tests.conformance.modelcheck import (
    MODES,
    Disagreement,
    Retraced,
    TorchFails,
    check,
    made,
    moved,
)
from tests.conformance.models import MODELS

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default:::(timm|transformers|torch|diffusers)"),
]

ENTRIES = [(name, mode) for name in MODELS for mode in MODES]
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
CHOSEN = set(
    random.Random(os.environ.get("CALQUE_SEED", "0")).sample(ENTRIES, round(SAMPLE * len(ENTRIES)))
)


@pytest.mark.parametrize(("name", "mode"), [entry for entry in ENTRIES if entry in CHOSEN])
def test_agrees_with_the_cpu(name: str, mode: str) -> None:
    why = reason(name, mode)
    if why is None:
        check(name, mode)
        return
    with pytest.raises((TraceError, TorchFails, Retraced, Disagreement, RuntimeError)):
        check(name, mode)
    pytest.xfail(why)


@pytest.mark.skipif("transformers/gpt2" not in MODELS, reason="needs transformers")
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "mamba"])
@pytest.mark.parametrize("beams", [1, 2])
def test_generates_the_same_tokens(family: str, beams: int) -> None:
    model, inputs = made(f"transformers/{family}")
    twin = copy.deepcopy(model).to("jax")
    prompt = {k: v[:, :5] for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
    settings = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams}
    want = model.eval().generate(**prompt, **settings)
    assert twin.eval().generate(**moved(prompt), **settings).tolist() == want.tolist()
