"""The current position of a trace in the module hierarchy."""

from types import TracebackType
from typing import Any


class Scope:
    """The module whose `forward` is running.

    Attributes:
        module_path: the qualified name, such as `"encoder.layers.0"`; `""` for the root.
        module_type: the class of that module; None for the root and for free functions.

    >>> Scope("encoder.norm", torch.nn.LayerNorm).module_path
    'encoder.norm'
    """

    def __init__(self, module_path: str, module_type: Any) -> None:
        self.module_path = module_path
        self.module_type = module_type


class ScopeContextManager:
    """Makes `scope` describe `current_scope` until the `with` block ends.

    The scope object itself is kept and changed, because tracers and their users hold on to it.

    >>> here = Scope("", None)
    >>> with ScopeContextManager(here, Scope("head", torch.nn.Linear)):
    ...     print(here.module_path)
    head
    >>> here.module_path
    ''
    """

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        self._scope = scope
        self._outer = (scope.module_path, scope.module_type)
        scope.module_path = current_scope.module_path
        scope.module_type = current_scope.module_type

    def __enter__(self) -> Scope:
        return self._scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scope.module_path, self._scope.module_type = self._outer
