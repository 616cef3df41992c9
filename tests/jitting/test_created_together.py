"""What a call creates: one object stays one, in results, attributes, functions and the state."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import calque
from calque.state.created_values import ValuesTemplate

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Make = Callable[..., torch.Tensor]


class Held:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def in_the_attribute_of_a_tensor(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        b, y = Held(n=1), x * 2
        y.tag = b
        return y, b

    for _ in range(3):
        y, b = f(x)
        b.n += 1
        yield y.tag is b, y.tag.n, y.tolist()


def the_attributes_themselves(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        b = Held(n=1, x=x + 1)
        return b.__dict__, b

    for _ in range(3):
        attributes, b = f(x)
        attributes["n"] = 5
        yield attributes is b.__dict__, b.n, b.x.tolist()


def arrays_of_objects(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        held = np.empty(2, dtype=object)
        held[0], held[1] = [1], "word"
        return held, held[0], x * 2

    for _ in range(3):
        held, first, y = f(x)
        first.append(2)
        yield held[0] is first, held[0], held[1], y.tolist()


def memory_of_bytes(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        memory = bytearray(b"abcd")
        return np.frombuffer(memory, np.uint8), memory, x + 1

    for _ in range(3):
        array, memory, _ = f(x)
        memory[0] = 120
        yield array.tolist(), bytes(memory)


def functions_over_a_list(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        d = [1]

        def last(y=x * 3):
            return d[-1], y

        return Held(called=last), d

    for _ in range(3):
        held, d = f(x)
        d.append(7)
        number, y = held.called()
        yield number, d, y.tolist()


def methods_of_new_objects(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        d = [x.sum()]
        return d.append, d

    for _ in range(3):
        append, d = f(x)
        append(4)
        yield len(d), d[0].item(), d[1]


def classes(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        class Kind:
            seen: list[int] = []

        return Kind, x + 1

    kinds = []
    for turn in range(3):
        kind, _ = f(x)
        kind.seen.append(turn)
        kinds.append(kind)
        yield kind.seen, len(set(kinds))


def graphs_on_the_cpu(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    w = torch.ones(2, requires_grad=True)

    @jit
    def f(x):
        return (w * 3).sum(), x + 1

    for _ in range(3):
        loss, _ = f(x)
        loss.backward()
        yield w.grad.tolist(), loss.item()  # pyright: ignore[reportOptionalMemberAccess]


def counts_that_may_be_missing(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace()

    @jit
    def f(x):
        s.calls = getattr(s, "calls", 0) + 1
        return x + 1

    for turn in range(5):
        f(x)
        if turn == 2:
            s.calls = 10
        yield s.calls


def a_list_that_changes_and_is_replaced(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(v=[torch.ones_like(x)])

    @jit
    def f(x):
        s.v[0] = s.v[0] + x
        s.v = [s.v[0]]

    for _ in range(3):
        f(x)
        yield s.v[0].tolist()


def a_dict_that_changes_and_is_copied(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(v={"h": torch.ones_like(x)})

    @jit
    def f(x):
        s.v["h"] = s.v["h"] * 2 + x
        s.v = dict(s.v)
        return s.v["h"] * 2

    for _ in range(3):
        y = f(x)
        yield s.v["h"].tolist(), y.tolist()


def classes_with_values(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    class Base:
        def get(self):
            return 1

    @jit
    def f(x):
        class Local(Base):
            "A class."

            n: int = 0

            def __init__(self, x):
                super().__init__()
                self.x = x

            def get(self):
                return super().get() + self.n

            @property
            def twice(self):
                return self.x * 2

            @classmethod
            def count(cls):
                cls.n += 1
                return cls.n

        class Below(Local):
            pass

        return Local(x), Local(x + 1), Below(x), Below

    kinds = set()
    for _ in range(3):
        a, b, c, kind = f(x)
        kinds.add(type(a))
        type(a).n += 5
        yield a.get(), b.count(), c.n, c.get(), a.twice.tolist(), type(a) is type(b)
        yield (
            type(c) is kind,
            len(kinds),
            type(a).__qualname__,
            type(a).__doc__,
            type(c).__mro__[1] is type(a),
        )


def tuples_that_are_stored(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(a=None, log=[])

    @jit
    def f(x):
        y = x * 2
        pair = (y, y)
        s.a = {"pair": pair}
        s.log.append(pair)
        return pair, (pair, 1)

    for _ in range(3):
        pair, (again, _) = f(x)
        yield pair is again, pair is s.a["pair"], pair is s.log[-1], pair[0] is pair[1]


def hidden_states(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(hidden=(x * 1, x + 1))

    @jit
    def f(x):
        h, c = s.hidden
        s.hidden = hidden = (h + x, c * h)
        return x * h, hidden

    for _ in range(4):
        y, hidden = f(x)
        yield y.tolist(), hidden is s.hidden, [one.tolist() for one in hidden]


def tuples_of_the_state(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(a=(x, [1]), b=None)

    @jit
    def f(x):
        s.b = s.a
        return s.a, (x * 2, s.a)

    for _ in range(3):
        a, (_, again) = f(x)
        yield a is s.a, a is s.b, a is again


def dtypes_of_numpy(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(kind=None)

    @jit
    def f(x):
        s.kind = [np.dtype("f4")]
        return x * 2

    for _ in range(3):
        f(x)
        yield s.kind[0] is np.dtype("f4")


def buffers_of_bytes(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        m = bytearray(b"abcdefgh")
        a = np.zeros(2)
        whole = memoryview(m)
        return whole, whole[1:3].toreadonly(), whole.cast("i"), m, memoryview(a), a, x * 2

    for _ in range(3):
        whole, part, numbers, m, of_array, a, _ = f(x)
        m[1] += 1
        of_array[0] = 3.0
        yield bytes(whole), bytes(part), part.readonly, numbers.tolist(), whole.obj is m, a.tolist()


def tensors_of_buffers(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(buffer=bytearray(8))

    @jit
    def f(x):
        m = bytearray(16)
        part = torch.frombuffer(m, dtype=torch.float32, offset=4, count=2)
        whole = torch.frombuffer(m, dtype=torch.float32)
        alone = torch.frombuffer(bytearray(8), dtype=torch.float32)
        held = torch.frombuffer(s.buffer, dtype=torch.float32)
        return part, whole, whole[1:], alone, held, m, x * 2

    for _ in range(3):
        part, whole, rest, alone, held, m, _ = f(x)
        part += 1
        rest += 2
        alone += 3
        held += 4
        yield part.tolist(), whole.tolist(), rest.tolist(), bytes(m)
        yield alone.tolist(), bytes(s.buffer)


def cyclic_results(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    @jit
    def f(x):
        a = [x * 2]
        a.append(a)
        b = {"a": a}
        b["pair"] = (b, x)
        return a, b

    for _ in range(3):
        a, b = f(x)
        a[0] = a[0] + 1
        yield a[1] is a, b["a"] is a, b["pair"][0] is b, b["a"][0].tolist()


def cyclic_state(x: torch.Tensor, jit: Wrap) -> Iterator[Any]:
    s = SimpleNamespace(a=None, v=x)

    @jit
    def f(x):
        a = {"v": x * 2}
        a["a"] = [a]
        s.a, s.b = a, a["a"]
        return x * 3

    for _ in range(3):
        f(x)
        s.a["v"] = s.a["v"] + 1
        yield s.a["a"][0] is s.a, s.b is s.a["a"], s.b[0]["v"].tolist()


PROGRAMS = [
    in_the_attribute_of_a_tensor,
    *([the_attributes_themselves] if sys.version_info < (3, 13) else []),  # docs/limits.md
    arrays_of_objects,
    memory_of_bytes,
    functions_over_a_list,
    methods_of_new_objects,
    classes_with_values,
    hidden_states,
    buffers_of_bytes,
    cyclic_results,
    classes,
    tensors_of_buffers,
    cyclic_state,
    tuples_that_are_stored,
    tuples_of_the_state,
    dtypes_of_numpy,
    graphs_on_the_cpu,
    counts_that_may_be_missing,
    a_list_that_changes_and_is_replaced,
    a_dict_that_changes_and_is_copied,
]
RETRACED = PROGRAMS[PROGRAMS.index(classes) :]
"""Programs that are traced more than twice."""


@pytest.mark.filterwarnings("ignore::calque.RetraceWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_call_creates_what_the_function_does(program: Any) -> None:
    made: list[Any] = []

    def jit(fn: Callable[..., Any]) -> Any:
        made.append(calque.jit(fn))
        return made[-1]

    x = torch.arange(2.0)
    wanted = list(program(x, lambda fn: fn))
    assert list(program(x.to("jax"), jit)) == wanted
    assert len(made[0].history) <= 2 or program in RETRACED, made[0].history


def test_an_argument_that_contains_itself_is_refused() -> None:
    items: list[Any] = [torch.ones(2, device="jax")]
    items.append({"items": items})
    with pytest.raises(calque.TraceError, match="a list contains itself.*\n.*an object"):
        calque.jit(lambda items: items[0] * 2)(items)


def test_errors_of_calque_itself_are_no_errors_of_a_class() -> None:
    def describe(tensor: torch.Tensor) -> Any:
        raise NameError("a mistake")

    value = [Held(x=torch.ones(2))]
    with pytest.raises(NameError, match="a mistake"):
        ValuesTemplate(lambda: value, {}, describe, {})


def test_a_tuple_that_a_variable_held_before_is_of_each_call():
    box = SimpleNamespace(pair=(torch.zeros(2, device="jax"), 1), history=[])

    @calque.jit
    def step(x):
        pair = box.pair
        box.pair = (x * 2, 1)
        box.history.append(pair)
        return pair, {"now": box.pair}

    before = 0.0
    for number in range(1, 5):
        pair, rest = step(torch.full((2,), float(number), device="jax"))
        assert rest["now"] is box.pair
        assert pair[0][0].item() == box.history[-1][0][0].item() == before
        before = number * 2.0
    assert len(step.history) == 1


def test_a_list_that_a_variable_held_before_keeps_its_identity():
    box = SimpleNamespace(items=[torch.zeros(2, device="jax")], history=[])

    @calque.jit
    def step(x):
        items = box.items
        box.items = [x + 1]
        box.history.append(items)
        return {"items": items}

    for number in range(1, 5):
        held = box.items
        found = step(torch.full((2,), float(number), device="jax"))
        assert found["items"] is held is box.history[-1] is not box.items
        assert held[0][0].item() == (number if number > 1 else 0)
    assert "what box.items held is stored elsewhere or returned" in step.history[1]


def test_a_variable_that_gets_what_another_held_is_traced_once():
    box = SimpleNamespace(pair=(torch.zeros(2, device="jax"), 1), last=None)

    @calque.jit
    def step(x):
        box.last, box.pair = box.pair, (x * 2, 1)
        return x

    for number in range(1, 6):
        step(torch.full((2,), float(number), device="jax"))
        assert box.last[0][0].item() == (number - 1) * 2
    assert len(step.history) == 2


def test_a_class_that_is_returned_is_that_of_the_stored_instance():
    kept: list[Any] = []

    @calque.jit
    def step(x):
        class Kind:
            number = 1

            def itself(self):
                return Kind

        class Other:
            number = 2

        one = Other()
        kept.append((Kind, one))
        return Kind, Other, one, x * 2

    for _ in range(3):
        kind, other, one, _ = step(torch.ones(2, device="jax"))
        assert kept[-1] == (kind, one)
        assert type(one) is other
        assert kind().itself() is kind
    assert len({id(kind) for kind, _ in kept}) == 3
