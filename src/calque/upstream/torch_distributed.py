"""The private names of `torch.distributed` that calque uses; this imports DTensor and FSDP."""

from typing import Any

import torch.distributed
from torch._library.fake_class_registry import FakeScriptObject
from torch.distributed import _Work as Work  # the result of an asynchronous collective
from torch.distributed.checkpoint import state_dict as checkpoint_state_dict  # its gather functions
from torch.distributed.fsdp._fully_shard._fully_shard import UnshardHandle
from torch.distributed.tensor._api import _dtensor_init_helper as dtensor_init_helper

mesh_resources: Any = torch.distributed.device_mesh._mesh_resources  # the mesh of a `with` block

# The backends that PyTorch's flight recorder ignores, from 2.15 on.
unrecorded: set[str] = getattr(
    torch.distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set[str]()
)


def real_object(value: object) -> Any:
    """Returns the mesh that an object of Dynamo represents; any other object unchanged."""
    return value.real_obj if isinstance(value, FakeScriptObject) else value
