"""Models of timm, transformers and others as graphs: traced, lowered, recorded; on other inputs.

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

_SIZES = "computes sizes from values"
_CACHES = "keeps what its first call has computed: call it before the trace"
_MESSAGE = "puts a value into the message of a check"
_TRACED = "does something else when it is traced"
REFUSED = {
    "timm/convit_tiny": _CACHES,
    "timm/efficientformerv2_s0": _CACHES,
    "timm/levit_128s": _CACHES,
    "timm/tiny_vit_5m_224": _CACHES,
    "transformers/encodec": _SIZES,
    "transformers/llava": _MESSAGE,
    "transformers/longformer": "fails on the way where a token attends to all",
    "transformers/nystromformer": _TRACED,
    "transformers/paligemma": _MESSAGE,
    "transformers/qwen2_vl": _SIZES,
    "transformers/rwkv": _CACHES,
    "transformers/switch_transformers": _SIZES,
    "transformers/vilt": _SIZES,
    "torch_geometric/gat": _SIZES,
    "torch_geometric/gcn": _SIZES,
    "torchvision/detection/faster_rcnn": _SIZES,
    "torchvision/detection/fcos": _SIZES,
    "torchvision/detection/mask_rcnn": _SIZES,
    "torchvision/detection/retinanet": _SIZES,
    "torchvision/detection/ssd": _SIZES,
    "torchvision/video/mvit": "asks for the size of what a leaf function gives",
}
ERRORS = {"transformers/longformer": TypeError, "transformers/nystromformer": RuntimeError}
NOT_LOWERED: dict[str, tuple[type[Exception], ...]] = dict.fromkeys(
    (f"transformers/{name}" for name in ("hubert", "prophetnet", "sew", "wav2vec2", "wavlm")),
    (TraceError,),  # sizes that depend on values, in a branch
)
NOT_LOWERED["nn/transformer"] = (RuntimeError,)  # nested tensors, on PyTorch's fast path

GUARDED = (
    *("transformers/switch_transformers", "torch_geometric/gcn"),
    *("torchvision/detection/mask_rcnn", "torchvision/detection/ssd"),
)
"""Recorded, what they do depends on values: other inputs go another way, and are told so."""

ENTRIES = [(name, tracer) for name in MODELS for tracer in ("calque", "lowered", "recorded")]
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
CHOSEN = set(
    random.Random(os.environ.get("CALQUE_SEED", "0")).sample(ENTRIES, round(SAMPLE * len(ENTRIES)))
)


@pytest.mark.parametrize(("name", "tracer"), [entry for entry in ENTRIES if entry in CHOSEN])
def test_a_graph_computes_what_the_model_does(name: str, tracer: str) -> None:
    if tracer == "recorded":
        if name not in GUARDED:
            check(name, tracer)
            return
        with pytest.raises(TraceError, match=r"\.py:\d+ .* when this was recorded"):
            check(name, tracer)
    elif name in REFUSED:
        with pytest.raises(ERRORS.get(name, TraceError)):
            check(name, tracer)
        if REFUSED[name] == _CACHES and tracer == "calque":
            check(name, "calque, called before")
    elif name in NOT_LOWERED and tracer == "lowered":
        with pytest.raises(NOT_LOWERED[name]):
            check(name, tracer)
    else:
        check(name, tracer)
