"""The arrays of NumPy of one trace that each call computes (see `traced_arrays`)."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from calque.jitting.host_computations import HostComputations, Pending
from calque.jitting.host_formulas import Argument, Computed, FixedArray, Formula, form_of_array
from calque.jitting.host_values import without_modes
from calque.program.host_results import memory_of
from calque.upstream.torch_internals import pytree

_from_numpy = torch.from_numpy  # a trace replaces the attribute


@dataclass(frozen=True, slots=True)
class _WithErrors:
    """A function of NumPy that runs within `np.errstate`."""

    func: Any
    settings: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Any, **options: Any) -> Any:
        with np.errstate(**dict(self.settings)):
            return self.func(*args, **options)


class ArrayComputations(HostComputations):
    """The CPU tensors and arrays of NumPy of one trace that each call computes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._errors: set[tuple[str, Any]] = set(np.geterr().items())

    def argument(self, index: int, array: Any, refuse: Callable[[], NoReturn]) -> Formula:
        """Returns the formula of an array among the arguments.

        Args:
            index: its index.
            array: the array of the trace.
            refuse: raises the error that has the values of such arrays compared.
        """
        self._refuse = refuse
        return self._root(Argument(index), array)

    def number(self, node: Any) -> Formula:
        """Returns the formula of a traced number."""
        return self._traced(node.compute, (node,))

    def constant_array(self, array: np.ndarray) -> Formula:
        """Returns the formula of an array that is the same in each call."""
        self._kept.append(formula := FixedArray(array))
        return formula

    def array(self, func: Any, operands: list[Any], spec: Any, result: np.ndarray) -> Formula:
        """Returns the formula of the array that a function of NumPy has returned."""
        known = [one for one in operands if isinstance(one, Formula)]
        settings = tuple(one for one in np.geterr().items() if one not in self._errors)
        func = _WithErrors(func, settings) if settings else func
        formula = self._kept_alive(Computed(func, operands, spec), *known)
        spec = pytree.tree_flatten(((0,), {}))[1]
        form = self._kept_alive(Computed(form_of_array, [formula], spec), formula)
        found = form_of_array(result)
        self._guard(form, found, found)
        return formula

    def tensor(self, formula: Formula, array: np.ndarray) -> Tensor:
        """Returns the tensor over an array, to which the function must not write."""
        with without_modes(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in calls, if the array cannot be written to
            found = _from_numpy(array)
        spec = pytree.tree_flatten(((0,), {}))[1]
        self.add(Pending(_from_numpy, [formula], spec, (array,), {}), found)
        self._shared.add(memory_of(found))
        return found
