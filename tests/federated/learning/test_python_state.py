"""What `forward` leaves in Python's state: refused where its next call would compute with it."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calque import federated as fed
from calque.errors import TraceError
from calque.federated import learning

DATA = [{"x": np.eye(4, dtype=np.float32)[:3] + i, "y": np.arange(3)} for i in range(2)]


class Keeping(nn.Linear):
    """A layer with attributes, and a function that uses them."""

    def __init__(self, change: Callable[[Any, torch.Tensor], Any]) -> None:
        torch.manual_seed(0)
        super().__init__(4, 3)
        self.change = (change,)
        self.kept: Any = None
        self.number = 1
        self.items: list[torch.Tensor] = []
        self.table: dict[str, torch.Tensor] = {}
        self.mean = torch.zeros(())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * self.change[0](self, input)


def filled_by_the_first_batch(own: Any, x: torch.Tensor) -> Any:
    if own.kept is None:
        own.kept = x.mean()
    return own.kept


def of_the_batch_before(own: Any, x: torch.Tensor) -> Any:
    before, own.kept = own.kept, x.mean().detach()
    return 1.0 if before is None else before


def of_the_first_parameters(own: Any, x: torch.Tensor) -> Any:
    if own.kept is None:
        own.kept = own.weight.detach().sum()
    return own.kept


def counted(own: Any, x: torch.Tensor) -> Any:
    own.number += 1
    return own.number


def flagged(own: Any, x: torch.Tensor) -> Any:
    first, own.kept = own.kept is None, True
    return 2.0 if first else 3.0


def gathered(own: Any, x: torch.Tensor) -> Any:
    own.items.append(x.mean().detach())
    return sum(own.items)


def by_key(own: Any, x: torch.Tensor) -> Any:
    return own.table.setdefault("mean", x.mean().detach())


def new(own: Any, x: torch.Tensor) -> Any:
    if not hasattr(own, "made"):
        own.made = x.mean().detach()
    return own.made


def average(own: Any, x: torch.Tensor) -> Any:
    own.mean = 0.9 * own.mean + x.mean()
    return own.mean


def gradient_before(own: Any, x: torch.Tensor) -> Any:
    before = own.kept
    x = x.clone().requires_grad_()
    x.register_hook(lambda gradient: setattr(own, "kept", gradient.mean()))
    return x.mean() if before is None else x.mean() * before


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (filled_by_the_first_batch, r"module\.kept \(.*:\d+ in filled_by_the_first_batch\)"),
        (of_the_batch_before, r"module\.kept \(.*:\d+ in of_the_batch_before\)"),
        (of_the_first_parameters, r"module\.kept \(.*:\d+ in of_the_first_parameters\)"),
        (counted, r"module\.number \(.*:\d+ in counted\)"),
        (flagged, r"module\.kept \(.*:\d+ in flagged\)"),
        (gathered, r"module\.items\[0\]"),
        (by_key, r"module\.table\['mean'\]"),
        (new, r"module\.made \(.*:\d+ in new\)"),
        (average, r"module\.mean \(.*:\d+ in average\)"),
        (gradient_before, r"module\.kept"),
    ],
)
def test_what_the_next_call_would_read_is_refused(change: Any, name: str) -> None:
    process = learning.fed_avg(Keeping(change), batch_size=3)
    with pytest.raises(TraceError, match=rf"{name} is changed by the (.|\n)*register_buffer"):
        process.next(process.initialize(), DATA)


def warming_up(own: Any, x: torch.Tensor) -> Any:
    own.number += 1
    return 0.1 if own.number < 1000 else 1.0


def checked_before_it_is_counted(own: Any, x: torch.Tensor) -> Any:
    result = x.mean() if (own.number - 1) % 500 == 499 else x.sum()
    own.number += 1
    return result


@pytest.mark.parametrize("change", [warming_up, checked_before_it_is_counted])
def test_what_only_a_later_call_would_read_is_refused(change: Any) -> None:
    process = learning.fed_avg(Keeping(change), batch_size=3)
    with pytest.raises(TraceError, match=r"module\.number \(.* is changed by the"):
        process.next(process.initialize(), DATA)


def ends_at_its_limit(own: Any, x: torch.Tensor) -> Any:
    own.number += 1
    return ([1.0] * 100)[own.number]


def test_a_count_that_would_be_out_of_range_is_none_to_go_by() -> None:
    process = learning.fed_avg(Keeping(ends_at_its_limit), batch_size=3)
    assert int(process.next(process.initialize(), DATA)[0].round) == 1


def harmless(own: Any, x: torch.Tensor) -> Any:
    if own.kept is None:
        own.kept = torch.arange(3.0) + 1
        own.made = 1.0 / x.shape[-1]
    own.number += 1
    own.items.append(x.mean())
    own.mean = F.dropout(x, 1.0).sum() + x.mean()
    return own.kept * own.made * own.mean * own.items[-1]


def test_what_makes_no_difference_is_kept_out_of_the_way() -> None:
    module = Keeping(harmless)
    process = learning.fed_avg(module, client_optimizer=0.1, batch_size=3)
    found = process.next(process.initialize(), DATA)[0].parameters["weight"]
    wanted = torch.zeros(3, 4)
    for one in DATA:
        own = Keeping(harmless)
        F.cross_entropy(own(torch.tensor(one["x"])), torch.tensor(one["y"])).backward()
        assert own.weight.grad is not None
        wanted += (own.weight.detach() - 0.1 * own.weight.grad) / len(DATA)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert module.kept is None and not module.items


def test_a_local_function_must_not_count_what_it_computes_with() -> None:
    calls = []
    count = [0]

    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(x.shape))
        return x + 1

    def counting(x: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return x * count[0]

    assert fed.local("float32[2]")(noted)(np.ones(2, np.float32)).tolist() == [2, 2]
    assert calls == [(2,)]
    with pytest.raises(TraceError, match=r"count\[0\] is changed by the function"):
        fed.local("float32[2]")(counting)


def drawn_by_python(own: Any, x: torch.Tensor) -> Any:
    return random.random()


def drawn_by_numpy(own: Any, x: torch.Tensor) -> Any:
    return float(np.random.rand())


def drawn_by_its_own(own: Any, x: torch.Tensor) -> Any:
    return own.generator.random()


@pytest.mark.parametrize(
    ("change", "name"),
    [(drawn_by_python, "'random'"), (drawn_by_numpy, r"'numpy\.random'")],
)
def test_random_numbers_of_python_are_refused(change: Any, name: str) -> None:
    process = learning.fed_avg(Keeping(change), batch_size=3)
    with pytest.raises(TraceError, match=f"draws from {name}(.|\n)*torch.rand"):
        process.next(process.initialize(), DATA)


def test_a_generator_of_the_module_is_refused_too() -> None:
    module = Keeping(drawn_by_its_own)
    module.generator = random.Random(0)
    process = learning.fed_avg(module, batch_size=3)
    with pytest.raises(TraceError, match=r"draws from 'module\.generator'"):
        process.next(process.initialize(), DATA)


def test_random_numbers_that_nothing_depends_on_are_not() -> None:
    def logged(own: Any, x: torch.Tensor) -> Any:
        return 1.0 if random.random() < 2 else 2.0

    process = learning.fed_avg(Keeping(logged), batch_size=3)
    _, metrics = process.next(process.initialize(), DATA)
    assert int(metrics["clients"]) == len(DATA)
