"""The private names of `torch.compile` that calque uses; importing this module imports Dynamo.

The backend needs them, and `calque.explain` for its report of graph breaks.
"""

from torch import _dynamo as dynamo  # `explain` and `reset`
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import OutputType  # how results alias arguments
