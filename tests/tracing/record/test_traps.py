"""No program that is recorded is silently wrong when its graph runs on other data."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calque
from tests.tracing.record.traps import TRAPS

pytestmark = pytest.mark.usefixtures("few_objects")  # for programs that collect garbage


def plain(value: Any) -> Any:
    """A result in containers that can be compared."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, str):
        return list(value.encode())
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def state(program: Any) -> dict[str, torch.Tensor]:
    return dict(program.named_buffers()) if isinstance(program, nn.Module) else {}


def call(run: Any, owner: Any, args: Any, seed: int) -> Any:
    """What a call gives, and what it does to its arguments and to the buffers."""
    torch.manual_seed(seed)
    own = copy.deepcopy(args)
    result = run(*own)
    return plain(result), plain(own), plain(state(owner))


def outcome(graph: Any, program: Any, args: Any, seed: int) -> tuple[Any, Exception | None]:
    try:
        return call(graph, program, args, seed), None
    except calque.TraceError as error:
        return None, error


@pytest.mark.sampled(80)
@pytest.mark.parametrize("level", ["function", "module"])
@pytest.mark.parametrize("name", TRAPS)
def test_a_replay_is_right_or_raises(name: str, level: Any) -> None:
    trap = TRAPS[name]
    program = trap.make()
    twin = copy.deepcopy(program)
    first = trap.draw()
    torch.manual_seed(1)
    recording = calque.record(program, *copy.deepcopy(first)) if trap.verdict != "refused" else None
    if recording is None:
        with pytest.raises(calque.TraceError):
            calque.record(program, *copy.deepcopy(first)).graph(level)
        return
    expected = call(twin, twin, first, 1)
    torch.testing.assert_close(plain(recording.result), expected[0], rtol=0, atol=0, equal_nan=True)
    graph = recording.graph(level)
    told = 0
    for seed in range(2, 8):
        args = trap.draw()
        before = plain(state(twin))
        expected = call(twin, twin, args, seed)
        found, error = outcome(graph, program, args, seed)
        if error is not None:
            assert trap.verdict == "guarded", error
            assert "traps.py:" in str(error)
            told += 1
            for key, value in state(twin).items():
                value.copy_(before[key])
            continue
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert bool(told) == (trap.verdict == "guarded")


def test_a_guarded_program_runs_again_on_what_was_recorded() -> None:
    for name, trap in TRAPS.items():
        if trap.verdict == "guarded":
            program, args = trap.make(), trap.draw()
            graph = calque.record(program, *copy.deepcopy(args)).graph()
            expected = plain(program(*copy.deepcopy(args)))
            found = plain(graph(*copy.deepcopy(args)))
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.steps = [], 0
        self.steps = 0

    def reset(self) -> None:
        self.seen.clear()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.detach())
        self.steps += 1
        return x * len(self.seen)


def test_a_change_is_told_with_the_line_that_ran() -> None:
    problems = calque.record(Counts(), torch.ones(2)).problems
    assert len(problems) == 2
    assert all(" in forward: self." in problem for problem in problems), problems


def test_a_scheduler_that_steps_without_a_new_rate_is_refused_at_its_line() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        scheduler.step()
        return x * 2

    recording = calque.record(step, torch.ones(3))
    line = step.__code__.co_firstlineno + 2
    assert f"{__file__}:{line} in step: scheduler.last_epoch changes" in recording.problems[0]


def test_a_new_rate_is_told_with_the_line_of_the_scheduler() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        scheduler.step()
        return x * 2

    rates = [p for p in calque.record(step, torch.ones(3)).problems if "['lr'] changes" in p]
    line = step.__code__.co_firstlineno + 2
    assert rates and all(f":{line} in step: " in rate for rate in rates)


HISTORY: dict[str, list[float]] = {"losses": []}
COUNTS = np.zeros(3)
RATES = [{"lr": 0.1}]


def keeps_in_a_list_of_a_dict(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    HISTORY.setdefault("losses", []).append(1.0)
    return y


def counts_in_an_array(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    COUNTS[0] += 1
    return y


def halves_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for group in RATES:
        group["lr"] *= 0.5
    return x * 2


def appends_to_an_argument(x: torch.Tensor, seen: Any = None) -> torch.Tensor:
    y = x * 2
    seen.append(3)
    return y


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (keeps_in_a_list_of_a_dict, "HISTORY['losses'] changes in length from 0 to 1"),
        (counts_in_an_array, "COUNTS is written to"),
        (halves_in_a_loop, "RATES[0]['lr'] changes from 0.1 to 0.05"),
        (appends_to_an_argument, "seen changes in length from 0 to 1"),
    ],
)
def test_a_change_of_something_within_is_told_with_its_line(program: Any, what: str) -> None:
    more: Any = {"seen": []} if program is appends_to_an_argument else {}
    (problem,) = calque.record(program, torch.ones(3), **more).problems
    line = program.__code__.co_firstlineno + 2
    indirect = program in (halves_in_a_loop, keeps_in_a_list_of_a_dict)  # by another name
    near = "near " if indirect else ""
    assert problem.startswith(f"{near}{__file__}:{line} in {program.__name__}: {what}")


def test_a_shallow_copy_of_a_tensor_is_a_call() -> None:
    def program(x: torch.Tensor) -> Any:
        shared = copy.copy(x)
        shared.mul_(2)
        return shared, copy.copy(shared) + x

    before = torch.Tensor.__reduce_ex__
    recording = calque.record(program, torch.ones(2))
    assert torch.Tensor.__reduce_ex__ is before
    for level in ("function", "aten"):
        x, y = torch.arange(3.0)[1:], torch.arange(3.0)[1:]
        torch.testing.assert_close(recording.graph(level)(x), program(y))
        assert torch.equal(x, y)


def test_a_tensor_of_another_class_is_named() -> None:
    class Named(torch.Tensor):
        pass

    recording = calque.record(lambda x: x.as_subclass(Named) + 1, torch.ones(2))
    with pytest.raises(calque.TraceError, match="Named, a tensor of a class of its own"):
        recording.graph()


CALLS = {"calls": 0}


def counts_once(x: torch.Tensor) -> torch.Tensor:
    """CALLS["calls"] += 1"""
    # CALLS["calls"] += 1
    CALLS["calls"] += 1
    return x + 1


def counts_twice(x: torch.Tensor) -> torch.Tensor:
    CALLS["calls"] += 1
    CALLS["calls"] += 1
    return x + 1


def test_a_line_of_a_change_is_said_to_be_near_unless_it_is_the_only_one() -> None:
    for program, near, after in ((counts_once, "", 3), (counts_twice, "near ", 1)):
        (problem,) = calque.record(program, torch.ones(3)).problems
        line = program.__code__.co_firstlineno + after
        assert problem.startswith(f"{near}{__file__}:{line} in {program.__name__}: CALLS")
