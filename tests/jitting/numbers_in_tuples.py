"""Programs that compute with numbers in tuples, and with NumPy's numbers, that change."""

from collections import namedtuple
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.jitting.numbers_in_variables import COMPILED, TRACED


class Schedule(NamedTuple):
    step: int = 0
    rate: float = 0.1
    mode: str = "warm up"

    @property
    def scaled(self):
        return self.rate * (self.step + 1)

    def later(self):
        return self._replace(step=self.step + 1, rate=self.rate * 0.9)


class Point(namedtuple("Point", "a b")):
    __slots__ = ()

    def __add__(self, other):
        return Point(self.a + other.a, self.b + other.b)


@dataclass(frozen=True)
class Settings:
    betas: tuple[float, float] = (0.9, 0.99)
    rate: float = 0.1


def _program(programs: dict[str, Any], name: str, run: Any, change: Any, traces: int, **state: Any):
    def make(device, jit):
        s = SimpleNamespace(**state)
        return jit(lambda x: run(s, x)), lambda i: change(s, i), lambda: vars(s)

    programs[name] = (make, traces) if programs is COMPILED else make


def change_weights(s, i):
    s.w = (1.0 - i / 10, 0.5 + i / 10)


def set_weights(s, x):
    s.w = (s.w[0] * 0.5, s.w[1] + 1)
    return x * s.w[0]


def swap_weights(s, x):
    s.w = s.w[::-1]
    return x * s.w[0]


def keep_previous(s, x):
    s.previous, s.w = s.w, (s.w[0] + 1, s.w[1])
    return x * (s.w[0] - s.previous[0])


def no_change(s, i):
    pass


WEIGHTS = {
    "unpacked": lambda s, x: x * s.w[0] + sum(s.w),
    "returned": lambda s, x: (x.sum(), s.w, s.w[:1], {"w": s.w, "list": [*s.w]}),
    "iterated": lambda s, x: [x * w * i for i, w in enumerate(s.w)],
    "of_a_tensor": lambda s, x: x[0, :2] * torch.tensor(s.w, device=x.device),
    "bounds": lambda s, x: x.clamp(s.w[0] - 1, s.w[1]),
    "assigned": set_weights,
    "swapped": swap_weights,
}
for name, run in WEIGHTS.items():
    _program(COMPILED, f"weights_{name}", run, change_weights, 2, w=(1.0, 0.5))
_program(COMPILED, "weights_kept", keep_previous, no_change, 3, w=(1.0, 0.5), previous=(0.0, 0.0))
for name, run in {
    "as_a_key": lambda s, x: (x.sum(), {s.w: 1}[s.w]),
    "in_a_text": lambda s, x: (x.sum(), f"{s.w}"),
    "whose_types_count": lambda s, x: x * (2 if type(s.w[0]) is float else 1),
    "whose_identity_counts": lambda s, x: x * (2 if s.w is s.v else 1),
    "compared": lambda s, x: x * (2 if s.w < (0.7, 0.1) else 1),
}.items():
    _program(TRACED, f"weights_{name}", run, change_weights, 0, w=(1.0, 0.5), v=(1.0, 0.5))


def change_form(s, i):
    s.w = [(1.0 + i,), (1, 0.5), (2.0 * i, True), (-0.0, float("nan"))][i % 4]


_program(TRACED, "weights_of_other_types", lambda s, x: (x * s.w[0], s.w), change_form, 0, w=(1.0,))


def change_schedule(s, i):
    s.now = s.now.later()


def advance(s, x):
    s.now = s.now.later()
    return x * s.now.scaled


for name, run, change in (
    ("read", lambda s, x: x * s.now.rate if s.now.mode == "warm up" else x, change_schedule),
    ("property", lambda s, x: (x * s.now.scaled, s.now), change_schedule),
    ("items", lambda s, x: (x.sum(), s.now._asdict(), s.now._replace(mode="b")), change_schedule),
    ("classes", lambda s, x: (isinstance(s.now, Schedule), x * s.now.rate), change_schedule),
    ("advanced", advance, no_change),
):
    _program(COMPILED, f"schedule_{name}", run, change, 2, now=Schedule())


def change_point(s, i):
    s.p = s.p + Point(1, 0.5)


_program(COMPILED, "points", lambda s, x: x * s.p.a + s.p.b, change_point, 2, p=Point(1, 2.0))


def change_settings(s, i):
    s.settings = replace(s.settings, betas=(0.9 - i / 100, 0.99), rate=0.1 * i)


def of_settings(s, x):
    return x * s.settings.betas[0] + s.settings.rate


_program(COMPILED, "frozen_settings", of_settings, change_settings, 2, settings=Settings())


def change_nested(s, i):
    s.pairs = [(0.1 * i, ("a", i)), (0.2, ("b", 2))]


def of_pairs(s, x):
    return sum(x * rate + n for rate, (_, n) in s.pairs)


_program(COMPILED, "pairs", of_pairs, change_nested, 2, pairs=[(0.5, ("a", 1)), (0.2, ("b", 2))])


# NumPy's numbers ----------------------------------------------------------------------------------


def count_numpy(s, x):
    s.n += 1
    return x * s.n, s.n


NUMPYS = {
    "operators": lambda s, x: (x * s.n, s.n * x, s.n - x, s.n < x, (x * 10).long() + s.n),
    "results": lambda s, x: (x.sum(), s.n, s.n * 2, 1 / s.n, s.n**2, -s.n, round(s.n, 1), s.n // 2),
    "comparisons": lambda s, x: (s.n > 0, s.n == 99, not s.n, min(s.n, 0.0), x * s.n),
    "classes": lambda s, x: (isinstance(s.n, float), isinstance(s.n, np.generic), x * s.n),
    "functions": lambda s, x: (x * np.sqrt(s.n), np.minimum(s.n, 3.0), np.cos(np.pi * s.n / 10)),
    "clipped": lambda s, x: (x * np.clip(s.n, 0, 5), np.interp(s.n, [0, 10], [0.0, 1.0])),
    "constants": lambda s, x: (np.float64(2.5) * s.n, s.n * np.float32(2.5), x.clamp(0, s.n)),
    "counted": count_numpy,
}
NUMPYS_NEEDED = {
    "new_tensors": lambda s, x: (torch.tensor(s.n), torch.as_tensor(s.n), x.new_tensor(s.n)),
    "methods": lambda s, x: (x * s.n.item(), s.n.dtype.name),
    "texts": lambda s, x: (x.sum(), f"{s.n:.2f}"),
    "arrays": lambda s, x: x * np.mean([s.n, 1.0]) + torch.as_tensor(np.array([s.n] * 2)).sum(),
}
for kind in (np.float32, np.float64, np.int64):

    def change_numpy(s, i, kind=kind):
        s.n = kind(i * 1.5 + 1)

    for name, run in NUMPYS.items():
        if name != "operators" or kind is not np.int64:
            key = f"numpy_{kind.__name__}_{name}"
            _program(COMPILED, key, run, change_numpy, 2, n=kind(2))
    for name, run in NUMPYS_NEEDED.items():
        _program(TRACED, f"numpy_{kind.__name__}_{name}", run, change_numpy, 0, n=kind(2))


def annealed_by_numpy(s, x):
    s.n += 1
    return x * np.cos(s.n / 10)


_program(COMPILED, "a_rate_by_numpy", annealed_by_numpy, no_change, 2, n=0)


# Other names of functions -------------------------------------------------------------------------


def same(a, b):
    return a is b


alias = same


def is_same(s, x):
    return x * (2.0 if alias(s.n, s.last) else 1.0)


def is_same_by_a_local_name(s, x):
    asked = same
    return x * (2.0 if asked(s.n, s.last) else 1.0)


def change_both(s, i):
    s.n = s.last = 1000 + i


for run in (is_same, is_same_by_a_local_name):
    _program(TRACED, run.__name__, run, change_both, 0, n=1000, last=None)
