"""Makes `torch.compile(model)` without a backend use calque for models on the device.

PyTorch's default, inductor, generates code for the devices that it knows, and raises a KeyError for
the rest. So a graph with tensors on the device is compiled by this backend, and any other graph by
inductor.
"""

import functools
import importlib
import logging
from typing import Any

import torch
from torch import fx

from calque.upstream.torch_internals import InductorWrapper, tree_leaves

logger: logging.Logger = logging.getLogger("calque.compile")


def install() -> None:
    """Make the default backend check for tensors on the device first."""
    wrapper: Any = InductorWrapper
    theirs = wrapper.__call__

    @functools.wraps(theirs)
    def call(self: Any, model_: Any, inputs_: Any, **kwargs: Any) -> Any:
        if not _is_on_device(model_, inputs_):
            return theirs(self, model_, inputs_, **kwargs)
        if self.config:
            raise RuntimeError(
                f"torch.compile(..., backend='inductor') with {', '.join(sorted(self.config))}: "
                "inductor generates no code for the jax device, and XLA has no such options.\n"
                'Write torch.compile(model, backend="calque"), without inductor\'s mode and '
                "options, or move the model to another device."
            )
        logger.info('a graph on the jax device is compiled with backend="calque", not inductor')
        return importlib.import_module("calque.dynamo.backend").backend(model_, list(inputs_))

    wrapper.__call__ = call


def _is_on_device(graph: object, inputs: Any) -> bool:
    values = list(inputs)
    if isinstance(graph, fx.GraphModule):
        values += tree_leaves([node.meta.get("example_value") for node in graph.graph.nodes])
    return any(isinstance(v, torch.Tensor) and v.device.type == "jax" for v in values)
