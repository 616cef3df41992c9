"""Abstract values of a run's tensors, some of which are freed before the graph is built."""

import torch

from calque.state import ATOMIC
from calque.tracing.abstract.abstract_values import AbstractValues
from calque.tracing.record.values import RunValue
from calque.upstream.torch_internals import FakeTensor

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)


class KnownValues(AbstractValues):
    """Abstract values of tensors that may have been freed."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else super().of(tensor)

    def like(self, value: RunValue) -> torch.Tensor | None:
        """Returns the abstract value for the recorded properties of a tensor."""
        looks = value.looks
        if looks is None or len(looks.stride) != len(looks.shape) or looks.dtype in _QUANTIZED:
            return None
        return self.made_from(looks)


def is_plain(template: object) -> bool:
    """Returns True if a result contains only tensors and constants, in containers."""
    if isinstance(template, (tuple, list)) and type(template) is not torch.Size:
        return all(map(is_plain, template))
    if isinstance(template, dict):
        return all(map(is_plain, template.values()))
    return isinstance(template, torch.Tensor) or type(template) in (RunValue, *ATOMIC, torch.Size)
