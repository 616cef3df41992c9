"""Numbers that change, and that code converts with `float` and `int`."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import calque
from calque.program.called_names import only_calls

pytestmark = pytest.mark.filterwarnings("ignore::calque.RetraceWarning")

PROGRAMS: dict[str, Any] = {
    "factor": (lambda s, x: x * float(s.i), 2),
    "returned": (lambda s, x: (x.sum(), float(s.i) / 10, int(s.i / 2)), 2),
    "kept": (lambda s, x: (setattr(s, "last", int(s.i / 2)), x * 2)[1], 3),
    "index": (lambda s, x: x[int(s.i / 2) % 4], 2),
    "filled": (lambda s, x: torch.full((2,), int(s.i / 2), device=x.device), 2),
    "made": (lambda s, x: torch.tensor(float(s.i), device=x.device), 2),
    "of_math": (lambda s, x: x * math.cos(float(s.i)), 2),
    "compared": (lambda s, x: x * 2 if float(s.i) > 3 else x, 3),
    "shape": (lambda s, x: torch.zeros(int(s.i / 3) + 1, device=x.device), 4),
    "range": (lambda s, x: sum(x * k for k in range(int(s.i / 3) + 1)), 4),
    "item": (lambda s, x: x * [1, 2, 3][int(s.i / 3)], 4),
    "text": (lambda s, x: (x.sum(), len(f"{float(s.i * 5):.1f}" + str(int(s.i)))), 9),
    "question": (lambda s, x: (x.sum(), float(s.i / 2).is_integer()), 9),
    "other_values": (lambda s, x: x * float(x.shape[0]) * float("2.5") * int("3"), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_converted_number_is_computed_in_each_call(name: str) -> None:
    run, traces = PROGRAMS[name]
    found, steps = [], []
    for jit in (lambda fn: fn, calque.jit):
        s, x = SimpleNamespace(i=0, last=None), torch.arange(12.0, device="jax").reshape(4, 3)

        def step(x: Any, s: Any = s) -> Any:
            s.i += 1
            return run(s, x)

        steps.append(jit(step))
        found.append([(steps[-1](x), s.i, s.last, type(s.last)) for _ in range(6)])
    for one, other in zip(*found, strict=True):
        assert one[1:] == other[1:]
        torch.testing.assert_close(other[0], one[0], rtol=0, atol=0)
        if isinstance(one[0], tuple):
            assert [*map(type, other[0])] == [*map(type, one[0])]
    assert len(steps[1].history) <= traces, steps[1].history
    assert "float" not in globals() and "int" not in globals()


def test_a_module_that_does_something_else_with_them() -> None:
    space: dict[str, Any] = {"__name__": "elsewhere"}
    exec("def f(x): return float(x) + int(x)", space)
    assert only_calls(space, "float")
    exec("class C:\n    @property\n    def p(self): return [isinstance(1, float)]", space)
    assert not only_calls(space, "float")
    assert only_calls(space, "int")
    assert not only_calls({**space, "int": len}, "int")
