"""Jitted modules: `calque.jit(module)` returns an `nn.Module`, like `torch.compile`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import Module

from calque.errors import tidy
from calque.jitting.explain import Explanation
from calque.jitting.generated.source import MISS
from calque.jitting.hints import add_hint

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OWN = frozenset(("_orig_mod", "_jitted"))


class JittedModule(Module):
    """A module whose calls run as one XLA program; made by `jit`.

    Its only child, `_orig_mod`, is the module itself, so parameters, buffers, `state_dict`, `to`
    and `train` work, and the keys of its `state_dict` begin with `_orig_mod.`, as with
    `torch.compile`. Every other attribute is read, set and deleted on the module. Hooks of the
    jitted module run around the program; those of the module run inside it.

    Args:
        jitted: the module's `Jitted`.

    Attributes:
        programs: the compiled programs, by signature.
        history: the reason for each trace, in order.
        compilations: the number of programs that XLA compiled.
    """

    _orig_mod: Module
    _jitted: Any

    def __init__(self, jitted: Any) -> None:
        super().__init__()
        super().__setattr__("_orig_mod", jitted.__wrapped__)
        super().__setattr__("_jitted", jitted)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        module = own["_modules"]["_orig_mod"]
        if "_initialize_hook" in module.__dict__:  # a lazy module, whose parameters have no shapes
            module._infer_parameters(module, args, kwargs)
        if (  # a loop over the names would be too slow
            own["_forward_pre_hooks"]
            or own["_forward_hooks"]
            or own["_backward_pre_hooks"]
            or own["_backward_hooks"]
        ):
            return super().__call__(*args, **kwargs)
        jitted = own["_jitted"]
        try:  # as `jitted` does when it is called, which takes longer
            result = jitted.run(args, kwargs)
            if result is not MISS:
                return result
        except Exception as error:
            add_hint(error)
            tidy(error)
            raise
        return jitted(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self._jitted(*args, **kwargs)

    @property
    def programs(self) -> dict[Any, list[Any]]:
        return self._jitted.programs

    @property
    def history(self) -> list[str]:
        return self._jitted.history

    @property
    def compilations(self) -> int:
        return self._jitted.compilations

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Traces for these arguments without running, and returns a `jax.stages.Lowered`."""
        return self._jitted.lower(*args, **kwargs)

    def explain(self) -> Explanation:
        """Explains what was lifted and guarded, and how often and why the module was traced."""
        return self._jitted.explain()

    @property
    def training(self) -> bool:
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_jitted" in self.__dict__:  # otherwise Module.__init__ is setting the default
            self._orig_mod.training = mode

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if not modules:  # not yet initialized
            raise AttributeError(name)
        return modules["_orig_mod"] if name == "_orig_mod" else getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or (name != "forward" and _is_own(name)) or "_jitted" not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN or _is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Like the module's own method."""
        self._orig_mod.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Like the module's own method."""
        self._orig_mod.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """Like the module's own method."""
        self._orig_mod.add_module(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Also accept the state dict of the unwrapped module."""
        inner = f"{prefix}_orig_mod."
        names = [name for name in state_dict if name.startswith(prefix)]
        if not any(name.startswith(inner) for name in names):
            for name in names:
                state_dict[inner + name.removeprefix(prefix)] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __getitem__(self, key: object) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._orig_mod)  # type: ignore[call-overload]

    def __contains__(self, key: object) -> bool:
        return key in self._orig_mod  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __reduce__(self) -> Any:
        return JittedModule, (self._jitted,), {name: self.__dict__[name] for name in _HOOKS}

    def __str__(self) -> str:
        return str(self._jitted)

    def __repr__(self) -> str:
        return f"<calque.jit of {self._orig_mod!r}>"


def _is_own(name: str) -> bool:
    return hasattr(JittedModule, name) or name in _MODULE_ATTRIBUTES


_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
