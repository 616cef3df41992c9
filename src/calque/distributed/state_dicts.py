"""`torch.distributed.checkpoint.state_dict` with `full_state_dict=True`, for tensors with a
placement.

PyTorch gathers DTensors across processes, and assumes that each process has any other tensor.
"""

import functools
from typing import Any

from calque.distributed.layouts import is_tensor
from calque.sharding import gather
from calque.upstream.torch_distributed import checkpoint_state_dict as theirs
from calque.upstream.torch_internals import tree_map


def install() -> None:
    """Make full state dicts gather one tensor at a time."""
    collect = theirs._gather_state_dict

    @functools.wraps(collect)
    def gathered(state_dict: object, *args: Any, cpu_offload: bool = False, **kwargs: Any) -> Any:
        def whole(value: Any) -> Any:
            if not is_tensor(value):
                return value
            found = gather(value)
            return found.cpu() if cpu_offload else found

        found = tree_map(whole, state_dict)
        return collect(found, *args, cpu_offload=cpu_offload, **kwargs)

    theirs._gather_state_dict = gathered
