"""The models of timm, transformers and torch.nn as graphs: traced, lowered, on inputs never seen.

`CALQUE_SAMPLE` and `CALQUE_SEED` choose a part, as for `test_models`. `tracecheck` prints the
same, and what torch.fx makes of each model beside it.
"""

import os
import random

import pytest

from calque import TraceError
from tests.conformance.models import MODELS
from tests.conformance.tracecheck import check

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default:::(timm|transformers|torch)"),
]

_ASSIGNS = "assigns attributes of its modules while it runs"
_LABELS = "branches on the values of its labels"
REFUSED = {
    "transformers/funnel": _ASSIGNS,
    "transformers/recurrent_gemma": _ASSIGNS,
    "transformers/rwkv": _ASSIGNS,
    "transformers/swin": _ASSIGNS,
    "transformers/wav2vec2": _LABELS,
    "transformers/hubert": _LABELS,
    "transformers/longformer": "asks whether any token attends to all",
}

ENTRIES = [(name, tracer) for name in MODELS for tracer in ("calque", "lowered")]
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
CHOSEN = set(
    random.Random(os.environ.get("CALQUE_SEED", "0")).sample(ENTRIES, round(SAMPLE * len(ENTRIES)))
)


@pytest.mark.parametrize(("name", "tracer"), [entry for entry in ENTRIES if entry in CHOSEN])
def test_a_graph_computes_what_the_model_does(name: str, tracer: str) -> None:
    if name in REFUSED:
        with pytest.raises(TraceError):
            check(name, tracer)
        return
    check(name, tracer)
