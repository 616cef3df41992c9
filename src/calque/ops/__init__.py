"""The op table: what every ATen operator means, as a pure JAX function.

Each module here but `registry`, `dtypes` and `common` is a family of operators; all are imported,
so that adding an operator touches one file.
"""

from importlib import import_module
from pkgutil import iter_modules

from calque.ops.registry import RULES, Rule, find, op

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["RULES", "Rule", "find", "op"]
