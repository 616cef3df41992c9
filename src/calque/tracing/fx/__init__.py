"""The names of torch.fx, with calque's tracer and proxies in place of torch's.

Graphs, nodes, graph modules, code generation, interpreters and the subgraph rewriter are torch's
own classes; so is every submodule that this package does not define itself:
`calque.tracing.fx.graph` *is* `torch.fx.graph`.
"""

import os

import torch.fx as _theirs
from torch.fx import *  # noqa: F403
from torch.fx import (
    CodeGen,
    Graph,
    GraphModule,
    Interpreter,
    Node,
    Transformer,
    has_side_effect,
    map_arg,
    replace_pattern,
)

from calque.tracing.core.submodule_imports import install as _install

_install(__name__, _theirs.__name__, os.path.dirname(__file__))
# If this package replaces torch.fx in `sys.modules`, torch's unloaded submodules must be found.
__path__ += _theirs.__path__  # noqa: F405

from calque.tracing.fx import _symbolic_trace, proxy  # noqa: E402
from calque.tracing.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap  # noqa: E402
from calque.tracing.fx.proxy import Proxy  # noqa: E402

__all__ = [
    "PH",
    "CodeGen",
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "Proxy",
    "ProxyableClassMeta",
    "Tracer",
    "Transformer",
    "has_side_effect",
    "map_arg",
    "proxy",
    "replace_pattern",
    "symbolic_trace",
    "wrap",
    "_symbolic_trace",
]


def __getattr__(name: str) -> object:
    """Returns any other attribute of torch.fx: an imported submodule,
    or a name of a later release.
    """
    return getattr(_theirs, name)
