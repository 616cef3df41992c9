"""`while` on a tensor: the error shows the `torch.while_loop` to write, and that can be traced."""

import textwrap
from typing import Any

import pytest
import torch

import calque
from calque import TraceError


def refused(f: Any, *args: torch.Tensor) -> str:
    with pytest.raises(TraceError) as caught:
        calque.trace(f, *args)
    message = str(caught.value)
    assert len(message.splitlines()) <= 12
    return message


def shown(message: str) -> str:
    """The program that an error shows."""
    lines = message.splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


def test_the_loop_that_is_shown_does_the_same() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        n = torch.zeros(())
        while x.sum() < 50 and not n > 9:
            x = x * y
            n = n + 1
        return x, n

    one, two = torch.ones(3), torch.full((3,), 2.0)
    message = refused(f, one, two)
    assert f"{__file__}:{f.__code__.co_firstlineno + 2} in f" in message
    assert "`while x.sum() < 50 and (not n > 9):`" in message
    program = textwrap.indent(shown(message), "    ")
    source = f"def g(x, y):\n    n = torch.zeros(())\n{program}\n    return x, n\n"
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    graph = calque.trace(names["g"], one, two)
    for x, y in [(one, two), (two, one), (one * 60, two)]:
        torch.testing.assert_close(graph(x, y), f(x, y))


def test_a_long_body_is_left_out() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            x = x + 1
            x = x * 2
            x = x - 1
            x = x * 3
            x = x.abs()
        return x

    message = refused(f, torch.ones(3))
    assert "..." in message
    assert "(x,) = " not in message
    assert "x, = torch.while_loop(lambda x: x.sum() < 10, body, (x,))" in message


def test_what_each_turn_makes_anew_is_not_carried() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            twice = x * 2
            x += twice
        return x

    program = textwrap.indent(shown(refused(f, torch.ones(3))), "    ")
    names: dict[str, Any] = {"torch": torch}
    exec(f"def g(x):\n{program}\n    return x\n", names)
    assert "body, (x,)" in program
    graph = calque.trace(names["g"], torch.ones(3))
    torch.testing.assert_close(graph(torch.ones(3)), f(torch.ones(3)))


def test_a_loop_in_a_method_that_is_decided_by_a_tensor() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while (x < 3).any():
                x = x + 1
            return x

    assert "Write it as torch.while_loop" in refused(Model(), torch.ones(3))


def test_a_loop_by_numbers_is_unrolled() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = 0
        while n < x.shape[0]:
            x = x + n
            n += 1
        return x

    torch.testing.assert_close(calque.trace(f, torch.ones(3))(torch.ones(3)), f(torch.ones(3)))


def test_an_if_within_a_while_by_numbers_is_a_choice() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = 0
        while n < 2:
            if x.sum() > 0:
                x = x - 2
            n += 1
        return x

    graph = calque.trace(f, torch.ones(3))
    for x in (torch.ones(3), -torch.ones(3), torch.full((3,), 5.0)):
        torch.testing.assert_close(graph(x), f(x))


def test_a_loop_within_a_loop_is_traced() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0, 1.0]))

    def inner(x: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
        start = torch.zeros((), dtype=torch.int64), x
        found = torch.while_loop(lambda j, y: j < most, lambda j, y: (j + 1, y * weight), start)
        return found[1]

    def program(x: torch.Tensor) -> Any:
        shift = x.mean()
        start = torch.zeros((), dtype=torch.int64), x
        return torch.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, inner(y, i) - shift), start
        )

    graph = calque.trace(program, torch.ones(2))
    x = torch.tensor([3.0, -1.0])
    with torch.no_grad():
        y, shift = x, x.mean()
        for i in range(3):
            y = y * weight**i - shift
        torch.testing.assert_close(graph(x)[1], y)
        torch.testing.assert_close(calque.lower(graph)(x)[1], y)


def test_a_branch_within_a_loop_is_refused_at_its_line() -> None:
    def body(x: torch.Tensor) -> Any:
        return (torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)),)

    def program(x: torch.Tensor) -> Any:
        return torch.while_loop(lambda x: x.sum() < 9, body, (x,))

    assert "test_loops.py" in (message := refused(program, torch.ones(2)))
    assert "torch.cond is called in a loop" in message
