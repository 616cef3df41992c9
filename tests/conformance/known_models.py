"""Models that do not run in some mode, and why: `KNOWN`."""

from fnmatch import fnmatch

_CPU = "PyTorch cannot compile it on the CPU either"
_LANDMARKS = "where it is compiled it adds a mask of the full length to its landmarks"
_BOXES = "chooses boxes by their values"
_EXPERTS = "asks which experts were chosen (nonzero)"
_CTC = "selects its labels by their values (CTC)"
_MESSAGE = "writes a tensor's value into the message of a check"
_STEPS = (
    "Adam counts its steps in float32 tensors under jit, as PyTorch does with capturable=True: its "
    "first updates differ by 7e-6 of their size, and the gradients of this model jump (given the "
    "same parameters they agree to 2e-12 in float64)"
)

KNOWN: dict[str, dict[str, str]] = {
    "timm/convit_tiny": {"train-jit": "keeps a table from its first call: the next is traced anew"},
    "transformers/longformer": {"*-jit": "asks whether any token attends to all"},
    "transformers/wav2vec2": {"*-jit": _CTC},
    "transformers/hubert": {"*-jit": _CTC},
    "transformers/wavlm": {"*-jit": _CTC},
    "transformers/sew": {"*-jit": _CTC},
    "transformers/switch_transformers": {"*-jit": _EXPERTS},
    "transformers/nystromformer": {"*-jit": _LANDMARKS, "*-compile": f"{_CPU}: {_LANDMARKS}"},
    "transformers/encodec": {"*-jit": "computes its padding with tensors"},
    "transformers/vilt": {"*-jit": "resizes its mask to a size that is a value"},
    "transformers/llava": {"*-jit": _MESSAGE},
    "transformers/paligemma": {"*-jit": _MESSAGE},
    "transformers/qwen2_vl": {"*-jit": "takes the sizes of its images from a tensor"},
    "torchvision/shufflenet_v2_x0_5": {"train-jit": _STEPS},
    "torchvision/detection/*": {"*-jit": _BOXES},
    "torch_geometric/gcn": {"*-jit": "looks for loops among the edges"},
    "torch_geometric/gat": {"*-jit": "looks for loops among the edges"},
}
"""Under jit a function that branches on values raises TraceError; torch.compile runs it in pieces.

The modes are patterns.
"""


def reason(name: str, mode: str) -> str | None:
    """Why a model does not run in a mode, where that is known."""
    for models, modes in KNOWN.items():
        if fnmatch(name, models):
            for pattern, why in modes.items():
                if fnmatch(mode, pattern):
                    return why
    return None
