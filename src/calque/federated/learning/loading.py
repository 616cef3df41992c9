"""Loads trained parameters back into a PyTorch module."""

import torch

from calque.device.backend.interop import to_torch
from calque.errors import with_user_frames
from calque.federated.learning.models import opened
from calque.federated.learning.state import State


@with_user_frames
def load(module: torch.nn.Module, state: State) -> None:
    """Copy the parameters and buffers of a state into a module, on any device.

    Args:
        module: a module with the same parameters as the trained one.
        state: a state that a process returned.

    Raises:
        TypeError: `state` is not a state.
        KeyError: the module has different parameters.
        ValueError: its parameters have different shapes.

    >>> import torch
    >>> from calque.federated import learning
    >>> module = torch.nn.Linear(2, 2)
    >>> learning.load(module, learning.fed_avg(module).initialize())
    """
    if not isinstance(state, State):
        raise TypeError(
            f"expected a state of a process, not {type(state).__name__}.\nTo load a module's "
            "state_dict, use module.load_state_dict."
        )
    module = opened(module)
    found = {**state.parameters, **state.buffers}
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if own.keys() != found.keys():
        odd = ", ".join(sorted(own.keys() ^ found.keys()))
        raise KeyError(f"the module and the state do not have the same parameters: {odd}")
    for name, tensor in own.items():
        if tensor.shape != found[name].shape:  # copy_ might broadcast
            raise ValueError(
                f"{name!r} has shape {list(tensor.shape)} in the module, but "
                f"{list(found[name].shape)} in the state.\nLoad it into a module like the one "
                "that was trained."
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(to_torch(found[name], "cpu"))
