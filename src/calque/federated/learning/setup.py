"""The settings that the algorithms share, and the functions built from them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh

from calque.federated.learning.aggregators import is_stateful
from calque.federated.learning.describing import described, described_module
from calque.federated.learning.models import Model, tree_add
from calque.federated.learning.process import IterativeProcess
from calque.federated.learning.state import Algorithm, RoundInfo, Sent, State
from calque.federated.learning.torch_optimizers import TorchOptimizer
from calque.federated.learning.training import Batches, Hook, Penalty, Trained, train
from calque.federated.representation import Sequence

Loss = Callable[[Any, Any], torch.Tensor]
Weighting = Literal["examples", "uniform"]


class CompilationOptions(TypedDict, total=False):
    """The options of compilation, as in `Computation.configured`."""

    chunk: int
    mesh: Mesh
    axis: str
    check: bool


class Settings(CompilationOptions, total=False):
    """The keyword arguments that the algorithms share.

    Attributes:
        weighting: "examples" to weight clients by their numbers of examples, or "uniform" to weight
            all clients that have examples equally.
        batch_size: the number of examples that a client computes at once; 32 by default.
        epochs: the number of times that a client goes through its examples; 1 by default.
        shuffle: whether it uses a new order each time.
        drop_remainder: whether the examples of incomplete batches are dropped.
        failing: the fraction of a round's clients that drop out of it, drawn again in each round;
            they do not count as participants. 0 by default.
        client_schedule: a function from the number of the round, 0 for the first, to a factor for
            the clients' steps, and so for their learning rate: `lambda number: 0.99**number`, or an
            optax schedule.
    """

    weighting: Weighting
    batch_size: int
    epochs: int
    shuffle: bool
    drop_remainder: bool
    failing: float
    client_schedule: Callable[[int], Any]


def checked(settings: Mapping[str, Any], kind: type, without: tuple[str, ...] = ()) -> None:
    """Raise a `TypeError` for unknown keywords, like Python."""
    known = sorted(set(kind.__annotations__) - set(without))
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise TypeError(
            f"unexpected keyword arguments: {', '.join(unknown)}; known ones are {', '.join(known)}"
        )


class Setup:
    """A module, the batches of clients, and the options of compilation.

    Args:
        module, loss: as for `Model`.
        settings: see `Settings`.
        without: the names of settings that the algorithm does not have.

    Raises:
        TypeError: a setting does not exist.
        ValueError: a setting is invalid.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss | None,
        settings: Mapping[str, Any],
        without: tuple[str, ...] = (),
    ) -> None:
        checked(settings, Settings, without)
        self.weighting: Any = settings.get("weighting", "examples")
        if self.weighting not in ("examples", "uniform"):
            raise ValueError(f"weighting must be 'examples' or 'uniform', not {self.weighting!r}.")
        self.failing: Any = settings.get("failing", 0.0)
        if not 0 <= self.failing < 1:
            raise ValueError(f"failing must be at least 0 and below 1, not {self.failing}")
        self.schedule: Any = settings.get("client_schedule")
        if self.schedule is not None and not callable(self.schedule):
            raise TypeError(
                "client_schedule must be a function of the round number, such as lambda number: "
                f"0.99**number, not {self.schedule!r}."
            )
        self.model: Model = Model(module, loss)
        self.batches: Batches = Batches(
            settings.get("batch_size", 32),
            settings.get("epochs", 1),
            settings.get("shuffle", False),
            settings.get("drop_remainder", False),
        )
        self._module = module
        self._choices = {
            "loss": loss,
            "weighting": self.weighting,
            "failing": self.failing,
            "batches": self.batches,
        }
        if self.schedule is not None:
            self._choices["client_schedule"] = self.schedule
        self.options: dict[str, Any] = {
            n: v for n, v in settings.items() if n in CompilationOptions.__annotations__
        }

    @property
    def filled(self) -> int | None:
        """The size to which batches are padded; None if incomplete batches are dropped."""
        return None if self.batches.drop_remainder else self.batches.size

    def trained(
        self,
        state: State,
        data: Sequence,
        given: RoundInfo,
        optimizer: Any,
        hook: Hook | None = None,
        penalty: Penalty | None = None,
    ) -> tuple[Trained, Any]:
        """Returns a client's parameters after its steps, and the change: `before - after`."""
        start = (state.parameters, state.buffers)
        done = train(self.model, *start, data, given, optimizer, self.batches, hook, penalty)
        return done, tree_add(self.model.free(state.parameters), done.parameters, -1.0)

    def sent(self, done: Trained, change: object, extra: object = (), memory: object = ()) -> Sent:
        """Returns the message of a client that has taken steps."""
        weight = self.weight(done.examples)
        parts = (change, extra, done.buffers, weight, done.loss, done.examples, memory)
        return Sent(*parts, changing=done.changing, reached=done.reached)

    def weight(self, examples: object) -> Any:
        """Returns the weight of a client by its number of examples; zero without examples."""
        if self.weighting == "examples":
            return examples
        return (jnp.asarray(examples) > 0).astype(jnp.float32)

    def process(
        self,
        client: Any,
        server: Any,
        choices: Mapping[str, Any],
        *,
        whole_gradient: bool,
        **rest: Any,
    ) -> IterativeProcess:
        """Returns the rounds of an algorithm.

        Args:
            client, server, **rest: as for `Algorithm`.
            choices: the algorithm's name, and its arguments other than settings.
            whole_gradient: whether a client computes the gradient over all of its examples.
        """
        aggregator = rest["aggregator"]
        if not _takes_three(aggregator):
            raise TypeError(
                f"an aggregator must be a function of (value, weight, key), not {aggregator!r}.\n"
                "Pass one of learning.aggregators, such as aggregators.median()."
            )
        filled = self.batches.size if whole_gradient else self.filled
        least = self.batches.size if self.batches.drop_remainder else 1
        choices = {**self._choices, **choices, "aggregator": aggregator}
        free = self.model.free(self.model.parameters)
        description = {
            name: value.described(free) if isinstance(value, TorchOptimizer) else described(value)
            for name, value in choices.items()
        }
        description["module"] = described_module(self._module)
        algorithm = Algorithm(
            self.model,
            client,
            server,
            least=least,
            filled=filled,
            dropping=not whole_gradient,
            size=self.batches.size,
            schedule=self.schedule,
            description=description,
            **rest,
        )
        return IterativeProcess(algorithm, self.options, self.failing)


def _takes_three(aggregator: object) -> bool:
    """Returns True for a function of a value, a weight, a key and, if it has one, a state."""
    if not callable(aggregator):
        return False
    try:
        inspect.signature(aggregator).bind(*[None] * (4 if is_stateful(aggregator) else 3))
    except TypeError:
        return False
    except ValueError:  # C functions may have no signature
        return True
    return True


def zeros(parameters: Any) -> Any:
    """Returns zeros with the shapes of parameters."""
    return jax.tree.map(jnp.zeros_like, parameters)


def moved(state: State, change: Any, scale: Any = 1.0) -> Any:
    """Returns the server's parameters, after changing the trained ones."""
    free = {name: state.parameters[name] for name in change}
    return {**state.parameters, **tree_add(free, change, scale)}
