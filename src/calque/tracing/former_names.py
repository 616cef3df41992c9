"""Names from when `calque.trace` was a package, which still work as attributes and in imports."""

import sys
from types import ModuleType

from calque import tracing


def install() -> None:
    """Give the function `calque.trace` the names of `calque.tracing`; `import` finds them, too."""
    names = {name: getattr(tracing, name) for name in tracing.__all__}
    vars(tracing.trace).update(names)
    former = ModuleType("calque.trace", __doc__)
    vars(former).update(names)
    sys.modules["calque.trace"] = former
    for name in ("", "._symbolic_trace", ".proxy"):
        sys.modules[f"calque.trace.fx{name}"] = sys.modules[f"calque.tracing.fx{name}"]
