"""The op table: what every ATen operator means, as a pure JAX function.

Each sub-package except `table` has families of operators. All their modules are imported, so that
adding an operator touches one file.
"""

from importlib import import_module
from pkgutil import iter_modules

from calque.ops.table.registry import RULES, Rule, find, op

# Optim uses the others.
_FAMILIES = ("pointwise", "reduce", "index", "linalg", "nn", "create", "optim")

for _family in _FAMILIES:
    for _module in iter_modules(import_module(f"{__name__}.{_family}").__path__):
        import_module(f"{__name__}.{_family}.{_module.name}")
import_module(f"{__name__}.table.real_only")

__all__ = ["RULES", "Rule", "find", "op"]
