"""Let torchvision, and what imports it, be used where its C++ has no build for this PyTorch.

Where torchvision is installed and its operators do not load, those that its models call are defined
here. Where it is not, timm can be imported all the same: its layers name one class of torchvision
and its data sets a few more; its models use none.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

_NAME = "torchvision"
_libraries: list[torch.library.Library] = []


class _Named(type):
    """A class whose unknown attributes are their own names, as of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Stubs(MetaPathFinder, Loader):
    """Serves any module of torchvision, with any class in it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        mine = fullname.partition(".")[0] == _NAME
        return ModuleSpec(fullname, self, is_package=True) if mine else None

    def exec_module(self, module: ModuleType) -> None:
        def named(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Named(name, (), {})

        module.__dict__["__getattr__"] = named


@contextmanager
def torchvision_stubbed() -> Iterator[None]:
    """Modules of torchvision can be imported within; no stubs stay behind."""
    if importlib.util.find_spec(_NAME) is not None:
        make_importable()
        yield
        return
    finder = _Stubs()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == _NAME]:
            del sys.modules[name]


def make_importable() -> None:
    """Define the operators of an installed torchvision whose C++ does not load; once."""
    if _libraries or _NAME in sys.modules or importlib.util.find_spec(_NAME) is None:
        return
    library = torch.library.Library(_NAME, "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        import torchvision
    except (ImportError, RuntimeError):  # broken in another way, so its models are not tested
        library._destroy()
        return
    if torchvision.extension._has_ops():
        library._destroy()
        return
    _libraries.append(library)
    library.impl("nms", suppressed, "CPU")
    sys.modules["torchvision.ops.boxes"]._assert_has_ops = lambda: None
    # The Python implementation that torchvision has for inductor, without compiling it.
    roi_align = sys.modules["torchvision.ops.roi_align"]
    roi_align.is_compile_supported = lambda device: True
    roi_align._roi_align = roi_align._roi_align.__wrapped__


def suppressed(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The boxes that remain if of two that overlap the one with the higher score does."""
    low, high = dets[:, :2], dets[:, 2:]
    areas = (high - low).prod(1)
    remaining = scores.argsort(descending=True, stable=True)
    kept: list[torch.Tensor] = []
    while len(remaining):
        first, rest = remaining[0], remaining[1:]
        kept.append(first)
        sides = torch.minimum(high[first], high[rest]) - torch.maximum(low[first], low[rest])
        common = sides.clamp(min=0).prod(1)
        remaining = rest[common / (areas[first] + areas[rest] - common) <= iou_threshold]
    return torch.stack(kept) if kept else scores.new_empty(0, dtype=torch.int64)
