"""Algorithms whose server uses the clients' mean change as a gradient.

Clients send changes in the direction of a gradient, `before - after`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import jax
import torch

from calque.errors import with_user_frames
from calque.federated.learning import aggregators
from calque.federated.learning.aggregators import Aggregator, StatefulAggregator
from calque.federated.learning.models import Model, squared
from calque.federated.learning.optimizers import Optimizer, Steps, as_optimizer, step
from calque.federated.learning.process import IterativeProcess
from calque.federated.learning.setup import Loss, Settings, Setup
from calque.federated.learning.state import RoundInfo, Sent, State
from calque.federated.learning.training import full_gradient, require_no_writes
from calque.federated.representation import Sequence

_OF_STEPS = ("epochs", "shuffle", "drop_remainder", "client_schedule")


@with_user_frames
def fed_avg(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    client_optimizer: Steps = 0.1,
    server_optimizer: Steps = 1.0,
    aggregator: Aggregator | StatefulAggregator | None = None,
    proximal: float = 0.0,
    **settings: Unpack[Settings],
) -> IterativeProcess:
    """Federated averaging (McMahan et al. 2017): clients train, the server averages.

    With a server optimizer other than plain gradient descent, this is FedOpt (Reddi et al. 2021);
    with `proximal`, FedProx (Li et al. 2020).

    Args:
        module: the model, which is not changed.
        loss: a function of the module's output and `y` that returns one loss for each example; by
            default the cross-entropy.
        client_optimizer: a learning rate, an optax optimizer, or a function that creates a
            torch.optim optimizer: `lambda p: torch.optim.Adam(p, lr=1e-3)`. Its state is new in
            each round.
        server_optimizer: the same, for the server; its gradient is the clients' mean change.
        aggregator: combines the changes; see `aggregators`. The mean by default.
        proximal: the weight of the proximal term; see `fed_prox`.
        **settings: see `Settings`: weighting, batch_size, epochs, shuffle, drop_remainder, failing,
            client_schedule, and chunk, mesh, axis, check.

    Returns:
        An `IterativeProcess`.

    >>> import numpy as np, torch
    >>> from calque.federated import learning
    >>> process = learning.fed_avg(torch.nn.Linear(2, 2), batch_size=4)
    >>> data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1])}]
    >>> state, metrics = process.next(process.initialize(), data)
    >>> int(state.round), int(metrics["examples"])
    (1, 2)
    """
    if not proximal >= 0:
        raise ValueError(f"proximal must be at least 0, not {proximal}")
    setup = Setup(module, loss, settings)
    by_client = as_optimizer(client_optimizer, setup.model.trained)
    by_server = as_optimizer(server_optimizer, setup.model.trained)

    def client(state: State, data: Sequence, given: RoundInfo, memory: Any) -> Sent:
        server = setup.model.free(state.parameters)

        def distance(parameters: object) -> Any:
            """Returns half the squared distance from the server's model, weighted."""
            squares = jax.tree.map(lambda a, b: squared(a - b).sum(), parameters, server)
            return proximal / 2 * sum(jax.tree.leaves(squares))

        penalty = distance if proximal else None
        return setup.sent(*setup.trained(state, data, given, by_client, penalty=penalty))

    return setup.process(
        client,
        _stepping(setup.model, by_server),
        {
            "algorithm": "fed_avg",
            "client_optimizer": by_client,
            "server_optimizer": by_server,
            "proximal": proximal,
        },
        aggregator=aggregator or aggregators.mean(),
        optimizer=by_server.init,
        whole_gradient=False,
    )


@with_user_frames
def fed_prox(
    module: torch.nn.Module, loss: Loss | None = None, *, proximal: float, **rest: Any
) -> IterativeProcess:
    """Like `fed_avg`, with a proximal term that keeps clients near the server's model (Li et al.
    2020).

    Args:
        module: as for `fed_avg`.
        loss: as for `fed_avg`.
        proximal: the weight of half the squared distance from the server's parameters.
        **rest: as for `fed_avg`.
    """
    return fed_avg(module, loss, proximal=proximal, **rest)


@with_user_frames
def fed_opt(
    module: torch.nn.Module, loss: Loss | None = None, *, server_optimizer: Steps, **rest: Any
) -> IterativeProcess:
    """Like `fed_avg`, with an optimizer on the server (Reddi et al. 2021), as in FedAdam or
    FedYogi.

    Args:
        module: as for `fed_avg`.
        loss: as for `fed_avg`.
        server_optimizer: its gradient is the mean change of the clients.
        **rest: as for `fed_avg`.
    """
    return fed_avg(module, loss, server_optimizer=server_optimizer, **rest)


@with_user_frames
def fed_sgd(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    server_optimizer: Steps = 0.1,
    aggregator: Aggregator | StatefulAggregator | None = None,
    **settings: Unpack[Settings],
) -> IterativeProcess:
    """Federated gradient descent: one step with the gradient over all examples of all clients.

    Args:
        module: as for `fed_avg`.
        loss: as for `fed_avg`.
        server_optimizer: a learning rate, or an optimizer as for `fed_avg`.
        aggregator: as for `fed_avg`.
        **settings: as for `fed_avg`, without those of the clients' steps. batch_size is the number
            of examples that a client computes at once. It does not affect the result, unless the
            examples of a batch depend on each other (BatchNorm): then the gradient is that of each
            batch's loss.
    """
    setup = Setup(module, loss, settings, without=_OF_STEPS)
    by_server = as_optimizer(server_optimizer, setup.model.trained)

    def client(state: State, data: Sequence, given: RoundInfo, memory: Any) -> Sent:
        start = (state.parameters, state.buffers)
        gradients, mean, one = full_gradient(setup.model, *start, data, given, setup.batches.size)
        require_no_writes(one, "fed_sgd uses only the gradients of clients")
        weight = setup.weight(data.length)
        return Sent(gradients, (), state.buffers, weight, mean, data.length, reached=one.reached)

    return setup.process(
        client,
        _stepping(setup.model, by_server),
        {"algorithm": "fed_sgd", "server_optimizer": by_server},
        aggregator=aggregator or aggregators.mean(),
        optimizer=by_server.init,
        whole_gradient=True,
    )


Names = frozenset[str] | None


def _stepping(model: Model, optimizer: Optimizer) -> Callable[..., State]:
    """Returns a server that uses the clients' mean change as a gradient."""

    def server(
        state: State, change: object, extra: object, participants: object, reached: Names
    ) -> State:
        free = model.free(state.parameters)
        new, optimizer_state = step(optimizer, change, state.optimizer, free, reached=reached)
        return replace(state, parameters={**state.parameters, **new}, optimizer=optimizer_state)

    return server
