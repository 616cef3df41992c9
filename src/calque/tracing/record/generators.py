"""`torch.Generator`s that a recorded program creates, as its graph does."""

from typing import Any

from calque.tracing.core.torch_settings import tracer_of_program
from calque.tracing.graph.random_calls import of_generator
from calque.upstream import torch_c


class MadeGenerator(torch_c.Generator):
    """A generator that records the calls that set or read its state.

    Draws need no record of their own, because the calls have the generator among their arguments.
    """

    def manual_seed(self, seed: object) -> Any:
        return _call(self, "manual_seed", seed)

    def set_state(self, state: object) -> Any:
        return _call(self, "set_state", state)

    def get_state(self) -> Any:
        return _call(self, "get_state")

    def initial_seed(self) -> int:
        return _call(self, "initial_seed")

    def seed(self) -> int:
        return _refused(self, "seed")

    def clone_state(self) -> Any:
        return _refused(self, "clone_state")

    def graphsafe_set_state(self, state: object) -> Any:
        return _refused(self, "graphsafe_set_state", state)

    def graphsafe_get_state(self) -> Any:
        return _refused(self, "graphsafe_get_state")


def _own(generator: MadeGenerator, method: str, *args: Any) -> Any:
    return getattr(super(MadeGenerator, generator), method)(*args)


def _call(generator: MadeGenerator, method: str, *args: Any) -> Any:
    recorder: Any = tracer_of_program(3)
    if recorder is None:
        return _own(generator, method, *args)
    run = lambda *given: _own(generator, method, *given)  # noqa: E731
    run.__name__ = method
    return recorder.run(run, args, {}, of_generator, (method, generator, *args))


def _refused(generator: MadeGenerator, method: str, *args: Any) -> Any:
    recorder: Any = tracer_of_program(3)
    if recorder is not None:
        recorder.refuse(
            f"{method} is called on a torch.Generator that the program has created; use "
            "manual_seed, get_state and set_state"
        )
    return _own(generator, method, *args)
