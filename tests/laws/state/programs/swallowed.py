"""L4: a value that a trace does not have is asked for where the error would be caught."""

import contextlib
import traceback
import types
from collections.abc import Iterator
from typing import Any

from tests.laws.state.case import Case
from tests.laws.state.table import group

program = group("swallowed", "jit rows trace")
Seen = Iterator[Any]


def calls(case: Case, f: Any) -> Seen:
    """Three calls, with positive, negative and positive values."""
    f = case.fn(f)
    for x in (case.x, -case.x, 2 * case.x):
        yield f(x)


@program
def except_exception_around_item(case: Case) -> Seen:
    def f(x):
        try:
            v = x.sum().item()
        except Exception:
            v = 0.0
        return x * v

    yield from calls(case, f)


@program
def bare_except_around_an_if(case: Case) -> Seen:
    def f(x):
        try:
            if x.sum() > 0:
                return x * 2
        except:  # noqa: E722
            return x * 3
        return x * 4

    yield from calls(case, f)


@program
def except_base_exception_around_float(case: Case) -> Seen:
    def f(x):
        try:
            return x * float(x[0])
        except BaseException:
            return x

    yield from calls(case, f)


@program
def except_runtime_error_around_tolist(case: Case) -> Seen:
    def f(x):
        try:
            return x * sum(x.tolist())
        except RuntimeError:
            return x

    yield from calls(case, f)


@program
def suppress_around_int(case: Case) -> Seen:
    def f(x):
        n = 1
        with contextlib.suppress(Exception):
            n = int(x.max())
        return x * n

    yield from calls(case, f)


@program
def return_in_finally(case: Case) -> Seen:
    def f(x):
        n = 1
        try:
            n = int(x.max())
        finally:
            return x * n  # noqa: B012

    yield from calls(case, f)


@program
def exit_that_returns_true(case: Case) -> Seen:
    class Quiet:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return True

    def f(x):
        n = 1.0
        with Quiet():
            n = x.mean().item()
        return x * n

    yield from calls(case, f)


@program
def exit_stack_that_swallows(case: Case) -> Seen:
    def f(x):
        n = 1.0
        with contextlib.ExitStack() as stack:
            stack.push(lambda *error: True)
            n = x.mean().item()
        return x * n

    yield from calls(case, f)


@program
def context_manager_function_that_swallows(case: Case) -> Seen:
    @contextlib.contextmanager
    def quiet():
        try:
            yield
        except Exception:
            pass

    def f(x):
        n = 1.0
        with quiet():
            n = x.mean().item()
        return x * n

    yield from calls(case, f)


@program
def error_that_is_stored(case: Case) -> Seen:
    s = types.SimpleNamespace(errors=0)

    def f(x):
        try:
            n = x.mean().item()
        except Exception:
            s.errors += 1
            n = 1.0
        return x * n

    for y in calls(case, f):
        yield y, s.errors


@program
def error_raised_as_another(case: Case) -> Seen:
    def value(x):
        try:
            return x.mean().item()
        except Exception as error:
            raise ValueError("no value") from error

    def f(x):
        try:
            return x * value(x)
        except ValueError:
            return x

    yield from calls(case, f)


@program
def error_that_is_formatted(case: Case) -> Seen:
    lines: list[str] = []

    def f(x):
        try:
            n = x.mean().item()
        except Exception:
            lines.append(traceback.format_exc())
            n = 1.0
        return x * n

    for y in calls(case, f):
        yield y, len(lines)
