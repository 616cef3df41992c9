"""Models of others: eagerly, in jit and compiled, in evaluation and in training.

The packages of the extra `models` are optional: what is missing is not in the table. Of each model
one mode is drawn, by `CALQUE_SEED`; `make zoo` (`CALQUE_MODES=all`) takes all six, which is hours.
`CALQUE_SAMPLE` chooses a part.
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

SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
_random = random.Random(os.environ.get("CALQUE_SEED", "0"))


def entries() -> list[tuple[str, str]]:
    """The models and modes to run."""
    every = os.environ.get("CALQUE_MODES") == "all"
    drawn = [(name, mode) for name in MODELS for mode in (MODES if every else [_mode()])]
    chosen = set(_random.sample(drawn, round(SAMPLE * len(drawn))))
    return [entry for entry in drawn if entry in chosen]


def _mode() -> str:
    return _random.choice(MODES)


@pytest.mark.parametrize(("name", "mode"), entries())
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
