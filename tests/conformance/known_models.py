"""Models that do not run in some mode, and why: `KNOWN`."""

from fnmatch import fnmatch

_CPU = "PyTorch cannot compile it on the CPU either"
_LANDMARKS = "where it is compiled it adds a mask of the full length to its landmarks"
_PROPOSALS = "draws the proposals that it learns from: the devices draw different numbers"
_DRAWS = "draws random numbers on the CPU: runs eagerly, with a warning"

KNOWN: dict[str, dict[str, str]] = {
    "timm/convit_tiny": {"train-jit": "keeps a table from its first call: the next is traced anew"},
    "transformers/nystromformer": {"*-jit": _LANDMARKS, "*-compile": f"{_CPU}: {_LANDMARKS}"},
    "transformers/vilt": {"*-jit": _DRAWS},
    "torchvision/detection/*rcnn": {"train*": _PROPOSALS},
    "torchvision/detection/*": {"train-jit": _DRAWS},
}
"""The modes are patterns."""


def reason(name: str, mode: str) -> str | None:
    """Why a model does not run in a mode, where that is known."""
    for models, modes in KNOWN.items():
        if fnmatch(name, models):
            for pattern, why in modes.items():
                if fnmatch(mode, pattern):
                    return why
    return None
