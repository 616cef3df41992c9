"""Algorithms that correct client drift with additional state on the server."""

from dataclasses import replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import torch

from calque.errors import with_user_frames
from calque.federated.learning import aggregators
from calque.federated.learning.models import tree_add
from calque.federated.learning.optimizers import as_optimizer, sgd
from calque.federated.learning.process import IterativeProcess
from calque.federated.learning.setup import Loss, Settings, Setup, moved, zeros
from calque.federated.learning.state import RoundInfo, Sent, State
from calque.federated.learning.training import full_gradient, is_positive
from calque.federated.representation import Sequence


@with_user_frames
def scaffold(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    clients: int,
    client_learning_rate: float = 0.1,
    server_learning_rate: float = 1.0,
    **settings: Unpack[Settings],
) -> IterativeProcess:
    """SCAFFOLD (Karimireddy et al. 2020): control variates against the drift of clients.

    Each client keeps a control variate of the model's size, updated by the second option of the
    paper; `State.memory` has those of all clients.

    Args:
        module: as for `fed_avg`.
        loss: as for `fed_avg`.
        clients: the number of all clients; `next` takes the numbers of those that participate.
        client_learning_rate: the learning rate of the clients' steps.
        server_learning_rate: the learning rate of the server's step.
        **settings: as for `fed_avg`, except weighting: all clients have the same weight.
    """
    if not is_positive(clients):
        raise ValueError(f"clients must be an integer of at least 1, not {clients!r}")
    if not client_learning_rate > 0:  # control variates are divided by it
        raise ValueError(f"client_learning_rate must be positive, not {client_learning_rate}")
    setup = Setup(module, loss, settings, without=("weighting",))
    setup.weighting = "uniform"
    by_client = sgd(client_learning_rate)

    def client(state: State, data: Sequence, given: RoundInfo, control: Any) -> Sent:
        drift = tree_add(state.extra, control, -1.0)
        done, change = setup.trained(state, data, given, by_client, lambda g, _: tree_add(g, drift))
        rate = client_learning_rate * (1.0 if given.scale is None else given.scale)
        moved_by = done.steps * rate
        scale = 1.0 / jnp.where(moved_by > 0, moved_by, 1.0)

        def correction(difference: Any, mean: Any) -> Any:
            return jnp.where(moved_by > 0, difference * scale - mean, 0)

        corrected = jax.tree.map(correction, change, state.extra)
        return setup.sent(done, change, corrected, tree_add(control, corrected))

    def server(state: State, change: object, corrected: Any, participants: Any, _: object) -> State:
        parameters = moved(state, change, -server_learning_rate)
        control = tree_add(state.extra, corrected, participants / clients)
        return replace(state, parameters=parameters, extra=control)

    return setup.process(
        client,
        server,
        {
            "algorithm": "scaffold",
            "clients": clients,
            "client_learning_rate": client_learning_rate,
            "server_learning_rate": server_learning_rate,
        },
        aggregator=aggregators.mean(),
        extra=zeros,
        memory=zeros,
        clients=clients,
        whole_gradient=False,
    )


@with_user_frames
def mime_lite(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    server_learning_rate: float = 1.0,
    **settings: Unpack[Settings],
) -> IterativeProcess:
    """MimeLite with momentum (Karimireddy et al. 2021): clients use the server's momentum
    unchanged.

    A client steps by `(1 - momentum) * gradient + momentum * m`. Then the server's `m` moves
    towards the mean of the clients' full gradients at the server's parameters.

    Args:
        module: as for `fed_avg`.
        loss: as for `fed_avg`.
        learning_rate: the learning rate of the clients' steps.
        momentum: at least 0 and less than 1.
        server_learning_rate: the fraction of the clients' mean change that the server applies.
        **settings: as for `fed_avg`.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, not {momentum}")
    setup = Setup(module, loss, settings)
    by_client = as_optimizer(learning_rate)

    def mixed(gradients: object, velocity: object) -> Any:
        return jax.tree.map(lambda g, m: (1 - momentum) * g + momentum * m, gradients, velocity)

    def client(state: State, data: Sequence, given: RoundInfo, memory: Any) -> Sent:
        done, change = setup.trained(
            state, data, given, by_client, lambda g, _: mixed(g, state.extra)
        )
        start = (state.parameters, state.buffers)
        whole, _, _ = full_gradient(setup.model, *start, data, given, setup.batches.size)
        return setup.sent(done, (change, whole))

    def server(state: State, sent: Any, extra: object, participants: object, _: object) -> State:
        change, whole = sent
        parameters = moved(state, change, -server_learning_rate)
        return replace(state, parameters=parameters, extra=mixed(whole, state.extra))

    return setup.process(
        client,
        server,
        {
            "algorithm": "mime_lite",
            "learning_rate": learning_rate,
            "momentum": momentum,
            "server_learning_rate": server_learning_rate,
        },
        aggregator=aggregators.mean(),
        extra=zeros,
        whole_gradient=True,
    )
