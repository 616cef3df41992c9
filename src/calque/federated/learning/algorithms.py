"""The algorithms: each says what a client does, what the server does, and what they keep.

Clients send changes in the direction of a gradient, `before - after`, so that a server's optimizer
takes them for one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch

from calque.federated.learning import aggregators
from calque.federated.learning.aggregators import Aggregator
from calque.federated.learning.models import Model, tree_add
from calque.federated.learning.optimizers import Optimizer, sgd
from calque.federated.learning.process import Algorithm, IterativeProcess, Sent, State
from calque.federated.learning.training import Batches, full_gradient, train
from calque.federated.representation import Sequence

Loss = Callable[[Any, Any], torch.Tensor]
Weighting = Literal["examples", "uniform"]


def fed_avg(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    client_optimizer: Optimizer | float = 0.1,
    server_optimizer: Optimizer | float = 1.0,
    weighting: Weighting = "examples",
    aggregator: Aggregator | None = None,
    proximal: float = 0.0,
    batch_size: int = 32,
    epochs: int = 1,
    shuffle: bool = False,
    drop_remainder: bool = False,
    **options: Any,
) -> IterativeProcess:
    """Federated averaging (McMahan et al. 2017): clients train, the server averages.

    With an optimizer on the server other than plain gradient descent it is FedOpt (Reddi et al.
    2021), with `proximal` FedProx (Li et al. 2020).

    Args:
        module: the model; it is not changed.
        loss: takes the module's output and `y`, gives one loss for each example; the cross-entropy
            by default.
        client_optimizer: a learning rate, or an optimizer of optax; begins anew each round.
        server_optimizer: likewise; it is given the mean change of the clients as gradient.
        weighting: whether clients weigh as much as they have examples, or all the same.
        aggregator: how changes are joined; see `aggregators`. The mean by default.
        proximal: how strongly clients are held to the server's model.
        batch_size, epochs, shuffle, drop_remainder: how clients go through their examples.
        **options: as of `Computation.configured`: chunk, mesh, axis, check.

    >>> import numpy as np, torch
    >>> from calque.federated import learning
    >>> process = learning.fed_avg(torch.nn.Linear(2, 2), batch_size=4)
    >>> data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1])}]
    >>> state, metrics = process.next(process.initialize(), data)
    >>> int(state.round), int(metrics["examples"])
    (1, 2)
    """
    _require(weighting)
    model = Model(module, loss)
    batches = Batches(batch_size, epochs, shuffle, drop_remainder)
    by_client, by_server = _optimizer(client_optimizer), _optimizer(server_optimizer)

    def client(state: State, data: Sequence, key: Any, memory: Any) -> Sent:
        def held(gradients: Any, parameters: Any) -> Any:
            away = tree_add(parameters, model.free(state.parameters), -1.0)
            return tree_add(gradients, away, proximal)

        hook = held if proximal else None
        done = train(model, state.parameters, state.buffers, data, key, by_client, batches, hook)
        change = tree_add(model.free(state.parameters), done.parameters, -1.0)
        weight = _weight(weighting, done.examples)
        return Sent(change, (), done.buffers, weight, done.loss, done.examples)

    return _process(
        Algorithm(
            model,
            client,
            _stepping(model, by_server),
            aggregator or aggregators.mean(),
            by_server.init,
            whole_batches=_whole(model, batches),
        ),
        options,
    )


def fed_prox(
    module: torch.nn.Module, loss: Loss | None = None, *, proximal: float, **rest: Any
) -> IterativeProcess:
    """`fed_avg` with a proximal term (Li et al. 2020): clients stay near the server's model.

    Args:
        module, loss, **rest: as of `fed_avg`.
        proximal: the weight of half the squared distance from the server's parameters.
    """
    return fed_avg(module, loss, proximal=proximal, **rest)


def fed_sgd(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    server_optimizer: Optimizer | float = 0.1,
    weighting: Weighting = "examples",
    aggregator: Aggregator | None = None,
    batch_size: int = 32,
    **options: Any,
) -> IterativeProcess:
    """Federated gradient descent: one step with the gradient over all examples of all clients.

    Args:
        module, loss, weighting, aggregator, **options: as of `fed_avg`.
        server_optimizer: a learning rate, or an optimizer of optax.
        batch_size: how many examples a client computes at once; no matter for the result.
    """
    _require(weighting)
    model = Model(module, loss)
    by_server = _optimizer(server_optimizer)

    def client(state: State, data: Sequence, key: Any, memory: Any) -> Sent:
        gradients, mean = full_gradient(
            model, state.parameters, state.buffers, data, key, batch_size
        )
        weight = _weight(weighting, data.length)
        return Sent(gradients, (), state.buffers, weight, mean, data.length)

    return _process(
        Algorithm(
            model,
            client,
            _stepping(model, by_server),
            aggregator or aggregators.mean(),
            by_server.init,
            whole_batches=batch_size if model.mixes_examples else None,
        ),
        options,
    )


def scaffold(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    clients: int,
    client_learning_rate: float = 0.1,
    server_learning_rate: float = 1.0,
    batch_size: int = 32,
    epochs: int = 1,
    shuffle: bool = False,
    drop_remainder: bool = False,
    **options: Any,
) -> IterativeProcess:
    """SCAFFOLD (Karimireddy et al. 2020): control variates against the drift of clients.

    Each client keeps a control variate of the model's size, updated by the second option of the
    paper; `State.memory` has those of all clients.

    Args:
        module, loss, batch_size, epochs, shuffle, drop_remainder, **options: as of `fed_avg`.
        clients: how many clients there are; `next` is told which of them take part.
        client_learning_rate: of the steps of clients.
        server_learning_rate: of the server's step.
    """
    model = Model(module, loss)
    batches = Batches(batch_size, epochs, shuffle, drop_remainder)
    by_client = sgd(client_learning_rate)

    def client(state: State, data: Sequence, key: Any, control: Any) -> Sent:
        drift = tree_add(state.extra, control, -1.0)
        done = train(
            model,
            state.parameters,
            state.buffers,
            data,
            key,
            by_client,
            batches,
            lambda gradients, _: tree_add(gradients, drift),
        )
        change = tree_add(model.free(state.parameters), done.parameters, -1.0)
        scale = 1.0 / (jnp.maximum(done.steps, 1) * client_learning_rate)
        moved = jax.tree.map(
            lambda d, m: jnp.where(done.steps > 0, d * scale - m, 0), change, state.extra
        )
        return Sent(
            change,
            moved,
            done.buffers,
            jnp.ones((), jnp.float32),
            done.loss,
            done.examples,
            tree_add(control, moved),
        )

    def server(state: State, change: Any, moved: Any, participants: Any) -> State:
        parameters = _moved(state, change, -server_learning_rate)
        control = tree_add(state.extra, moved, participants / clients)
        return replace(state, parameters=parameters, extra=control)

    return _process(
        Algorithm(
            model,
            client,
            server,
            aggregators.mean(),
            extra=_zeros,
            memory=_zeros,
            clients=clients,
            whole_batches=_whole(model, batches),
        ),
        options,
    )


def mime_lite(
    module: torch.nn.Module,
    loss: Loss | None = None,
    *,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    server_learning_rate: float = 1.0,
    weighting: Weighting = "examples",
    batch_size: int = 32,
    epochs: int = 1,
    shuffle: bool = False,
    drop_remainder: bool = False,
    **options: Any,
) -> IterativeProcess:
    """MimeLite with momentum (Karimireddy et al. 2021): clients use the server's momentum as it is.

    A client steps by `(1 - momentum) * gradient + momentum * m`; the server's `m` then goes towards
    the mean of the clients' full gradients at the server's parameters.

    Args:
        module, loss, weighting, batch_size, epochs, shuffle, drop_remainder, **options: as of
            `fed_avg`.
        learning_rate: of the steps of clients.
        momentum: from 0 on, below 1.
        server_learning_rate: how much of the clients' mean change the server makes.
    """
    _require(weighting)
    model = Model(module, loss)
    batches = Batches(batch_size, epochs, shuffle, drop_remainder)

    def mixed(gradients: Any, velocity: Any) -> Any:
        return jax.tree.map(lambda g, m: (1 - momentum) * g + momentum * m, gradients, velocity)

    def client(state: State, data: Sequence, key: Any, memory: Any) -> Sent:
        done = train(
            model,
            state.parameters,
            state.buffers,
            data,
            key,
            sgd(learning_rate),
            batches,
            lambda gradients, _: mixed(gradients, state.extra),
        )
        change = tree_add(model.free(state.parameters), done.parameters, -1.0)
        whole, _ = full_gradient(model, state.parameters, state.buffers, data, key, batch_size)
        weight = _weight(weighting, done.examples)
        return Sent((change, whole), (), done.buffers, weight, done.loss, done.examples)

    def server(state: State, sent: Any, extra: Any, participants: Any) -> State:
        change, whole = sent
        parameters = _moved(state, change, -server_learning_rate)
        return replace(state, parameters=parameters, extra=mixed(whole, state.extra))

    return _process(
        Algorithm(
            model,
            client,
            server,
            aggregators.mean(),
            extra=_zeros,
            whole_batches=batch_size if model.mixes_examples else None,
        ),
        options,
    )


# What they share ---------------------------------------------------------------------------------


def _process(algorithm: Algorithm, options: dict[str, Any]) -> IterativeProcess:
    unknown = set(options) - {"chunk", "mesh", "axis", "check"}
    if unknown:
        raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
    return IterativeProcess(algorithm, options)


def _optimizer(given: Optimizer | float) -> Optimizer:
    if isinstance(given, int | float | np.floating):
        return sgd(float(given))
    if not (hasattr(given, "init") and hasattr(given, "update")):
        raise TypeError(
            f"an optimizer is a learning rate, or one of optax, not {type(given).__name__}"
        )
    return given


def _require(weighting: Weighting) -> None:
    """Raise unless it is one of the weightings."""
    if weighting not in ("examples", "uniform"):
        raise ValueError(f"there is no weighting {weighting!r}.\nUse 'examples' or 'uniform'.")


def _weight(weighting: Weighting, examples: Any) -> Any:
    return examples if weighting == "examples" else jnp.ones((), jnp.float32)


def _whole(model: Model, batches: Batches) -> int | None:
    return batches.size if model.mixes_examples and not batches.drop_remainder else None


def _zeros(parameters: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, parameters)


def _moved(state: State, change: Any, scale: Any = 1.0) -> Any:
    """The server's parameters, with a change of those that are trained."""
    free = {name: state.parameters[name] for name in change}
    return {**state.parameters, **tree_add(free, change, scale)}


def _stepping(model: Model, optimizer: Optimizer) -> Callable[[State, Any, Any, Any], State]:
    """A server that takes the clients' mean change for a gradient."""

    def server(state: State, change: Any, extra: Any, participants: Any) -> State:
        free = model.free(state.parameters)
        updates, optimizer_state = optimizer.update(change, state.optimizer, free)
        parameters = _moved(state, updates)
        return replace(state, parameters=parameters, optimizer=optimizer_state)

    return server
