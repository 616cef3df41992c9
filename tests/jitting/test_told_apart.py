"""Programs that tell tensors, containers and objects apart by what they are, not what they hold."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import calque

Tensor = torch.Tensor


class Box:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Settings:
    def __init__(self) -> None:
        self.size = 1


def same_id(one: object, other: object) -> bool:
    return id(one) == id(other)


COMPARED: dict[str, Callable[[Any, Any], int]] = {
    "set": lambda a, b: len({a, b}),
    "key": lambda a, b: 2 if a in {b: 1} else 3,
    "counted": lambda a, b: max(Counter([a, b]).values()),
    "hash": lambda a, b: 2 if hash(a) == hash(b) else 3,
    "is": lambda a, b: 2 if a is b else 3,
    "helper": lambda a, b: 2 if same_id(a, b) else 3,
}
OF_OBJECTS: dict[str, Callable[[Any, Any], int]] = {
    **COMPARED,
    "equal": lambda a, b: 2 if a == b else 3,
    "in": lambda a, b: 2 if a in [b] else 3,
}
HELD: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda t: t, lambda one: one),
    "list": (lambda t: [t], lambda one: one[0]),
    "dict": (lambda t: {"a": t}, lambda one: one["a"]),
    "tuple": (lambda t: (t,), lambda one: one[0]),
    "object": (Box, lambda one: one.value),
}
CASES = [
    (kind, name)
    for kind in HELD
    for name in (OF_OBJECTS if kind == "object" else COMPARED)
    if kind in ("tensor", "object") or name in ("is", "helper")
]


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda one: str(one))
def test_an_argument_and_what_a_variable_holds(kind: str, name: str) -> None:
    (made, tensor_of), compared, seen = HELD[kind], OF_OBJECTS[name], []
    for device in ("cpu", "jax"):
        state = SimpleNamespace(last=made(torch.ones(2, device=device)))

        def step(one: Any, state: Any = state) -> Tensor:
            count = compared(state.last, one)
            state.last = one
            return tensor_of(one) * count

        run = step if device == "cpu" else calque.jit(step)
        kept, found = made(torch.ones(2, device=device)), []
        for i in range(3):
            found.append(run(made(torch.full((2,), float(i), device=device))).tolist())
        for one in (kept, kept, made(torch.zeros(2, device=device)), kept, kept):
            found.append(run(one).tolist())
        assert state.last is kept
        seen.append(found)
    assert seen[0] == seen[1]


def test_a_gradient_and_an_argument() -> None:
    seen = []
    for device in ("cpu", "jax"):
        weight = torch.nn.Parameter(torch.ones(2, device=device))

        def count(x: Tensor, weight: Tensor = weight) -> Tensor:
            return x * len({weight.grad, x})

        run, found = count if device == "cpu" else calque.jit(count), []
        first, second = torch.ones(2, device=device), torch.zeros(2, device=device)
        for weight.grad in (first, second, first, second):
            found.append(run(first).tolist())
        seen.append(found)
    assert seen[0] == seen[1]


def test_a_key_that_takes_the_place_of_an_equal_one() -> None:
    seen = []
    for device in ("cpu", "jax"):
        state = SimpleNamespace(settings=Settings())
        names = {state.settings: "first"}

        def count(x: Tensor, state: Any = state, names: Any = names) -> Tensor:
            return x * (2 if state.settings in names else 3) * state.settings.size

        run, x = count if device == "cpu" else calque.jit(count), torch.ones(2, device=device)
        found = [run(x).tolist(), run(x).tolist()]
        state.settings = Settings()
        found += [run(x).tolist(), run(x).tolist()]
        names[state.settings] = "second"
        found.append(run(x).tolist())
        seen.append(found)
    assert seen[0] == seen[1]


def test_keys_that_are_parameters_cost_no_trace() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="jax"))
    momenta: dict[Tensor, Tensor] = {}
    state = SimpleNamespace(hidden=torch.zeros(2, device="jax"))

    @calque.jit
    def step(x: Tensor) -> Tensor:
        loss = (weight * x + state.hidden).square().sum()
        loss.backward()
        gradient: Any = weight.grad
        with torch.no_grad():
            if weight not in momenta:
                momenta[weight] = torch.zeros_like(weight)
            momenta[weight].mul_(0.9).add_(gradient)
            weight.sub_(0.1 * momenta[weight])
        weight.grad = None
        return loss.detach()

    for _ in range(6):
        step(torch.ones(2, device="jax"))
        state.hidden = state.hidden + 1
    assert len(step.history) <= 3


def test_a_program_that_looks_up_a_replaced_tensor_is_traced_once() -> None:
    state = SimpleNamespace(last=torch.zeros(2, device="jax"))

    @calque.jit
    def step(x: Tensor) -> Tensor:
        count = len({state.last, x})
        state.last = x
        return x * count

    for i in range(6):
        assert step(torch.full((2,), float(i), device="jax")).tolist() == [2 * i, 2 * i]
    assert step.history == ["first call"]


def is_known(tensor: Any, known: set[int]) -> bool:
    return id(tensor) in known


def found_by_id(x: Tensor, known: set[int]) -> Tensor:
    return x * (2 if is_known(x, known) else 3)


def found_by_ids(x: Tensor, known: set[int]) -> Tensor:
    return x * (3 - len(known.intersection(map(id, [x]))))


def noted_by_id(x: Tensor, known: set[int]) -> Tensor:
    if id(x) in known:
        return x * 2
    known.add(id(x))
    return x * 3


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("look_up", [found_by_id, found_by_ids, noted_by_id])
def test_an_argument_whose_id_the_state_holds(look_up: Callable[..., Tensor]) -> None:
    seen = []
    for device in ("cpu", "jax"):
        tensors = [torch.full((2,), float(i), device=device) for i in range(4)]
        known = {id(tensors[0])}

        def step(x: Tensor, known: set[int] = known) -> Tensor:
            return look_up(x, known)

        run = step if device == "cpu" else calque.jit(step)
        found = [run(tensors[i]).tolist() for i in (0, 0, 1, 1, 2, 0, 3, 2, 1)]
        seen.append((found, [id(one) in known for one in tensors]))
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("written", [str, hex, "t{}".format, "<{:x}>".format, float, lambda n: -n])
def test_an_argument_whose_id_the_state_holds_in_another_form(written: Callable[..., Any]) -> None:
    seen = []
    for device in ("cpu", "jax"):
        tensors = [torch.full((2,), float(i), device=device) for i in range(3)]
        known = {written(id(tensors[0]))}
        state = SimpleNamespace(last=None)

        def find(x: Tensor, known: set[Any] = known) -> Tensor:
            return x * (2 if written(id(x)) in known else 3)

        def follow(x: Tensor, state: Any = state) -> Tensor:
            is_last, state.last = state.last == written(id(x)), written(id(x))
            return x * (2 if is_last else 3)

        run = (find, follow) if device == "cpu" else (calque.jit(find), calque.jit(follow))
        order = (1, 1, 1, 2, 2, 2, 0, 0, 1)
        seen.append([[one(tensors[i]).tolist() for one in run] for i in order])
    assert seen[0] == seen[1]


FOUND: dict[str, Callable[[Any, Any], int]] = {
    "index": lambda one, known: known.index(one),
    "remove": lambda one, known: known.remove(one) or known.append(one) or len(known),
    "key": lambda one, known: dict(zip(known, (5, 6, 7)))[one],
    "id": lambda one, known: {id(other): i for i, other in enumerate(known)}[id(one)],
}


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("name", FOUND)
def test_an_argument_that_a_function_looks_for_in_its_state(name: str) -> None:
    find, seen = FOUND[name], []
    for device in ("cpu", "jax"):
        known = [Box(torch.full((2,), i + 1.0, device=device)) for i in range(3)]
        boxes = list(known)

        def step(box: Box, known: list[Box] = known) -> Tensor:
            return box.value * find(box, known)

        run = step if device == "cpu" else calque.jit(step)
        found = [run(boxes[i]).tolist() for i in (0, 0, 1, 0, 2, 2, 1)]
        with pytest.raises((ValueError, KeyError)):
            run(Box(torch.ones(2, device=device)))
        seen.append((found, [boxes.index(box) for box in known]))
    assert seen[0] == seen[1]


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
def test_a_list_whose_id_is_a_key() -> None:
    lists = [[torch.full((2,), float(i), device="jax")] for i in range(3)]
    numbers = {id(one): i + 1 for i, one in enumerate(lists)}
    run = calque.jit(lambda one: one[0] * numbers[id(one)])
    assert [run(lists[i]).tolist()[0] for i in (0, 0, 1, 2, 0)] == [0, 0, 2, 6, 0]
    with pytest.raises(KeyError):
        run([torch.ones(2, device="jax")])


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("order", ["aab", "abab", "aabba"])
def test_a_gradient_whose_id_a_function_asks_for_in_another(order: str) -> None:
    seen = []
    for device in ("cpu", "jax"):
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        gradients = {name: torch.ones(2, device=device) for name in "ab"}
        known = {id(gradients["a"])}

        def step(x: Tensor, weight: Tensor = weight, known: set[int] = known) -> Tensor:
            return x * (2 if is_known(weight.grad, known) else 3)

        run, found = step if device == "cpu" else calque.jit(step), []
        for name in order:
            weight.grad = gradients[name]
            found.append(run(torch.ones(2, device=device)).tolist())
        seen.append(found)
    assert seen[0] == seen[1]


def test_arguments_whose_ids_are_used_in_one_call_cost_no_trace() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="jax"))
    momenta: dict[int, Tensor] = {id(weight): torch.zeros(2, device="jax")}
    state = SimpleNamespace(hidden=torch.zeros(2, device="jax"))

    @calque.jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        total = sum({id(one): one for one in (x, y)}.values())
        loss = (weight * total + state.hidden).square().sum()
        loss.backward()
        gradient: Any = weight.grad
        with torch.no_grad():
            momenta[id(weight)].mul_(0.9).add_(gradient)
            weight.sub_(0.1 * momenta[id(weight)])
        weight.grad = None
        return loss.detach()

    for _ in range(6):
        step(torch.ones(2, device="jax"), torch.ones(2, device="jax"))
        state.hidden = state.hidden + 1
    assert len(step.history) == 2


def counted_by_id(one: Any, counts: dict[int, int]) -> int:
    counts[id(one)] = counts.get(id(one), 0) + 1
    return counts[id(one)]


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "object"])
def test_a_container_whose_id_the_function_keeps(kind: str) -> None:
    (made, tensor_of), seen = HELD[kind], []
    for device in ("cpu", "jax"):
        counts: dict[int, int] = {}

        def step(one: Any, counts: dict[int, int] = counts) -> Tensor:
            return tensor_of(one) * counted_by_id(one, counts)

        run = step if device == "cpu" else calque.jit(step)
        held = {name: made(torch.ones(2, device=device)) for name in "ab"}
        found = [run(held[name]).tolist() for name in "aabbaab"]
        seen.append((found, [counts[id(one)] for one in held.values()]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["is", "helper"])
@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "object"])
def test_two_arguments_that_are_one(kind: str, name: str) -> None:
    (made, tensor_of), compared, seen = HELD[kind], OF_OBJECTS[name], []
    for device in ("cpu", "jax"):

        def step(one: Any, other: Any) -> Tensor:
            return tensor_of(one) * compared(one, other)

        run = step if device == "cpu" else calque.jit(step)
        a, b = (made(torch.ones(2, device=device)) for _ in range(2))
        seen.append([run(*pair).tolist() for pair in ((a, b), (a, a), (b, b), (b, a), (a, a))])
    assert seen[0] == seen[1]
