"""Each algorithm against a plain PyTorch loop over clients and batches, as it was published."""

import copy
import itertools
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calque.errors import ClientError
from calque.federated import learning

SIZES = (5, 1, 8, 3)
BATCH, EPOCHS, LR = 3, 2, 0.1


def make_data(sizes: tuple[int, ...] = SIZES) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)} for n in sizes
    ]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


Params = dict[str, torch.Tensor]


def params_of(module: nn.Module) -> Params:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def gradient(module: nn.Module, params: Params, x: np.ndarray, y: np.ndarray) -> Params:
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    output = torch.func.functional_call(module, leaves, (torch.tensor(x),))
    loss = F.cross_entropy(output, torch.tensor(y))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def batches(client: dict[str, np.ndarray], drop: bool = False) -> list[tuple[Any, Any]]:
    n = len(client["y"])
    starts = [s for _ in range(EPOCHS) for s in range(0, n, BATCH) if not drop or s + BATCH <= n]
    return [(client["x"][s : s + BATCH], client["y"][s : s + BATCH]) for s in starts]


def local_steps(
    module: nn.Module,
    params: Params,
    client: dict[str, np.ndarray],
    hook: Callable[[Params, Params], Params] = lambda g, p: g,
) -> Params:
    for x, y in batches(client):
        g = hook(gradient(module, params, x, y), params)
        params = {name: p - LR * g[name] for name, p in params.items()}
    return params


def average(results: list[Params], weights: list[float]) -> Params:
    total = sum(weights)
    return {n: sum(w * r[n] for w, r in zip(weights, results)) / total for n in results[0]}  # type: ignore[misc]


def agree(state: learning.State, params: Params, rtol: float = 1e-4) -> None:
    for name, wanted in params.items():
        np.testing.assert_allclose(state.parameters[name], wanted, rtol=rtol, atol=1e-6)


def rounds(process: learning.IterativeProcess, data: Any, count: int = 3) -> learning.State:
    state = process.initialize()
    for _ in range(count):
        state, _ = process.next(state, data)
    return state


COMMON = {"batch_size": BATCH, "epochs": EPOCHS}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fed_avg(weighting: Any, chunk: int) -> None:
    module, data = make_model(), make_data()
    process = learning.fed_avg(
        module, client_optimizer=LR, weighting=weighting, chunk=chunk, **COMMON
    )
    params = params_of(module)
    weights = [float(n) for n in SIZES] if weighting == "examples" else [1.0] * 4
    for _ in range(3):
        params = average([local_steps(module, params, c) for c in data], weights)
    agree(rounds(process, data), params)


def test_fed_prox() -> None:
    module, data = make_model(), make_data()
    process = learning.fed_prox(module, proximal=0.5, client_optimizer=LR, **COMMON)
    params = params_of(module)
    for _ in range(3):
        start = params

        def hook(g: Params, p: Params, start: Params = start) -> Params:
            return {n: g[n] + 0.5 * (p[n] - start[n]) for n in g}

        params = average([local_steps(module, params, c, hook) for c in data], list(SIZES))
    agree(rounds(process, data), params)


def test_fed_sgd_is_gradient_descent_on_all_examples() -> None:
    module, data = make_model(), make_data()
    process = learning.fed_sgd(module, server_optimizer=LR, batch_size=BATCH)
    x, y = (np.concatenate([c[name] for c in data]) for name in "xy")
    params = params_of(module)
    for _ in range(3):
        g = gradient(module, params, x, y)
        params = {n: p - LR * g[n] for n, p in params.items()}
    agree(rounds(process, data), params)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optax.adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            optax.adamw(0.01, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        ),
        (learning.sgd(0.5, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
    ],
    ids=["adam", "adamw", "momentum"],
)
def test_fed_opt_takes_the_mean_change_for_a_gradient(ours: Any, theirs: Any) -> None:
    module, data = make_model(), make_data()
    process = learning.fed_avg(module, client_optimizer=LR, server_optimizer=ours, **COMMON)
    server = copy.deepcopy(module)
    optimizer = theirs(list(server.parameters()))
    for _ in range(4):
        params = params_of(server)
        mean = average([local_steps(module, params, c) for c in data], list(SIZES))
        for name, p in server.named_parameters():
            p.grad = params[name] - mean[name]
        optimizer.step()
    agree(rounds(process, data, 4), params_of(server), rtol=1e-3)


def test_clients_may_use_any_optimizer() -> None:
    module, data = make_model(), make_data((6, 3))
    process = learning.fed_avg(module, client_optimizer=optax.adam(0.01), **COMMON)
    results = []
    for client in data:
        local = copy.deepcopy(module)
        optimizer = torch.optim.Adam(local.parameters(), lr=0.01)
        for x, y in batches(client):
            optimizer.zero_grad()
            F.cross_entropy(local(torch.tensor(x)), torch.tensor(y)).backward()
            optimizer.step()
        results.append(params_of(local))
    agree(rounds(process, data, 1), average(results, [6, 3]), rtol=1e-3)


@pytest.mark.conformance
def test_scaffold_with_sampled_clients() -> None:
    module, data = make_model(), make_data()
    process = learning.scaffold(
        module, clients=4, client_learning_rate=LR, server_learning_rate=0.7, **COMMON
    )
    params = params_of(module)
    zero = {n: torch.zeros_like(p) for n, p in params.items()}
    server, controls = zero, [zero] * 4
    state = process.initialize()
    for chosen in ([0, 2], [2, 3], [1, 0, 2]):
        changes, moves = [], []
        for i in chosen:

            def hook(g: Params, p: Params, i: int = i, server: Params = server) -> Params:
                return {n: g[n] - controls[i][n] + server[n] for n in g}

            after = local_steps(module, params, data[i], hook)
            steps = len(batches(data[i]))
            new = {
                n: controls[i][n] - server[n] + (params[n] - after[n]) / (steps * LR)
                for n in params
            }
            changes.append({n: after[n] - params[n] for n in params})
            moves.append({n: new[n] - controls[i][n] for n in params})
            controls[i] = new
        change, move = average(changes, [1] * len(chosen)), average(moves, [1] * len(chosen))
        params = {n: params[n] + 0.7 * change[n] for n in params}
        server = {n: server[n] + len(chosen) / 4 * move[n] for n in params}
        state, _ = process.next(state, [data[i] for i in chosen], clients=chosen)
    agree(state, params)
    for i in range(4):
        for name in params:
            np.testing.assert_allclose(
                state.memory[name][i], controls[i][name], rtol=1e-3, atol=1e-5
            )


def test_mime_lite() -> None:
    module, data = make_model(), make_data()
    process = learning.mime_lite(
        module, learning_rate=LR, momentum=0.8, server_learning_rate=0.9, **COMMON
    )
    params = params_of(module)
    velocity = {n: torch.zeros_like(p) for n, p in params.items()}
    for _ in range(3):

        def hook(g: Params, p: Params, m: Params = velocity) -> Params:
            return {n: 0.2 * g[n] + 0.8 * m[n] for n in g}

        mean = average([local_steps(module, params, c, hook) for c in data], list(SIZES))
        whole = average([gradient(module, params, c["x"], c["y"]) for c in data], list(SIZES))
        params = {n: params[n] + 0.9 * (mean[n] - params[n]) for n in params}
        velocity = {n: 0.2 * whole[n] + 0.8 * velocity[n] for n in params}
    agree(rounds(process, data), params)


def test_dropping_the_remainder_is_asked_for_and_exact() -> None:
    module, data = make_model(), make_data((5, 7))
    process = learning.fed_avg(module, client_optimizer=LR, drop_remainder=True, **COMMON)
    results = []
    for client in data:
        params = params_of(module)
        for x, y in batches(client, drop=True):
            g = gradient(module, params, x, y)
            params = {n: p - LR * g[n] for n, p in params.items()}
        results.append(params)
    state, metrics = process.next(process.initialize(), data)
    agree(state, average(results, [3, 6]))
    assert int(metrics["examples"]) == 9


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_client_without_examples_changes_nothing(weighting: Any) -> None:
    module, data = make_model(), make_data((5, 0, 3))
    process = learning.fed_avg(module, client_optimizer=LR, weighting=weighting, **COMMON)
    without = rounds(process, [data[0], data[2]], 2)
    agree(
        rounds(process, data, 2),
        {n: torch.tensor(np.array(p)) for n, p in without.parameters.items()},
    )


def test_no_examples_at_all_are_refused() -> None:
    process = learning.fed_avg(make_model(), client_optimizer=LR, **COMMON)
    with pytest.raises((ValueError, ClientError)):
        process.next(process.initialize(), make_data((0, 0)))


def test_metrics() -> None:
    module, data = make_model(), make_data()
    process = learning.fed_avg(module, client_optimizer=0.0, **COMMON)
    _, metrics = process.next(process.initialize(), data)
    x, y = (torch.tensor(np.concatenate([c[name] for c in data])) for name in "xy")
    np.testing.assert_allclose(metrics["loss"], F.cross_entropy(module(x), y).item(), rtol=1e-5)
    assert int(metrics["examples"]) == sum(SIZES)
    assert int(metrics["clients"]) == len(SIZES)


def test_evaluation() -> None:
    module, data = make_model(), make_data()
    state = learning.fed_avg(module).initialize()
    found = learning.Evaluation(module)(state, data)
    x, y = (torch.tensor(np.concatenate([c[name] for c in data])) for name in "xy")
    output = module(x)
    np.testing.assert_allclose(found["loss"], F.cross_entropy(output, y).item(), rtol=1e-5)
    accuracy = (output.argmax(1) == y).float().mean().item()
    np.testing.assert_allclose(found["accuracy"], accuracy, rtol=1e-5)
    assert int(found["examples"]) == sum(SIZES)


def test_shuffled_rounds_see_every_example_once_in_an_epoch() -> None:
    """With a rate of zero the loss is that of the model, whatever the order."""
    module, data = make_model(), make_data()
    options = {**COMMON, "client_optimizer": 0.0}
    plain = learning.fed_avg(module, **options)
    shuffled = learning.fed_avg(module, shuffle=True, **options)
    first = plain.next(plain.initialize(), data)[1]["loss"]
    second = shuffled.next(shuffled.initialize(), data)[1]["loss"]
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_the_seed_and_the_round_decide_the_order() -> None:
    module, data = make_model(), make_data()
    process = learning.fed_avg(module, client_optimizer=LR, shuffle=True, **COMMON)

    def after(seed: int, count: int = 2) -> np.ndarray:
        state = process.initialize(seed)
        for _ in range(count):
            state, _ = process.next(state, data)
        return np.asarray(state.parameters["0.weight"])

    np.testing.assert_array_equal(after(1), after(1))
    assert np.abs(after(1) - after(2)).max() > 1e-6


def test_the_state_is_a_pytree_that_can_be_saved_and_used_again() -> None:
    module, data = make_model(), make_data()
    process = learning.scaffold(module, clients=4, **COMMON)
    state, _ = process.next(process.initialize(), data)
    leaves, spec = jax.tree.flatten(state)
    again = jax.tree.unflatten(spec, [np.asarray(leaf) for leaf in leaves])
    first, second = process.next(state, data)[0], process.next(again, data)[0]
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_client_whose_loss_is_nan_is_named() -> None:
    data = make_data()
    data[2]["x"][4, 1] = np.nan
    process = learning.fed_avg(make_model(), **COMMON)
    with pytest.raises(ClientError, match="client 2 passes NaN"):
        process.next(process.initialize(), data)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="chunks"):
        learning.fed_avg(make_model(), chunks=3)


@pytest.mark.parametrize(
    "make", [learning.fed_avg, learning.fed_sgd, learning.mime_lite], ids=lambda make: make.__name__
)
def test_an_unknown_weighting_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="weighting must be .* not 'example'"):
        make(make_model(), weighting="example")


def test_an_optimizer_is_a_rate_or_what_makes_one() -> None:
    learning.fed_avg(make_model(), client_optimizer=np.float32(0.1))
    with pytest.raises(TypeError, match="not str"):
        learning.fed_avg(make_model(), client_optimizer="adam")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="as a function that creates it: lambda p: torch.optim.SGD"):
        learning.fed_avg(
            make_model(), client_optimizer=torch.optim.SGD(make_model().parameters(), 0.1)
        )


def test_numbers_of_clients_are_integers() -> None:
    process = learning.fed_avg(make_model(), **COMMON)
    with pytest.raises(ValueError, match="must be integers"):
        process.next(process.initialize(), make_data(), clients=[0.1, 0.5, 2.0, 3.0])


def test_numbers_of_clients_are_not_negative() -> None:
    process = learning.fed_avg(make_model(), **COMMON)
    with pytest.raises(ValueError, match="client numbers must be between 0"):
        process.next(process.initialize(), make_data(), clients=[0, 1, 2, -1])


@pytest.mark.parametrize("clients", [[0, 0, 1, 2], [0, 1], [0, 1, 2, 4]])
def test_numbers_of_clients_are_checked(clients: list[int]) -> None:
    process = learning.scaffold(make_model(), clients=4, **COMMON)
    with pytest.raises(ValueError, match="client numbers"):
        process.next(process.initialize(), make_data(), clients=clients)


@pytest.mark.conformance
def test_a_fraction_of_the_clients_drops_out_as_if_it_had_not_been_asked() -> None:
    data = make_data((5, 4, 8, 3, 6, 7, 2, 9))
    process = learning.fed_avg(make_model(), **COMMON, failing=0.25)
    before = process.initialize(seed=3)
    state, metrics = process.next(before, data)
    assert int(metrics["clients"]) == 6
    whole = learning.fed_avg(make_model(), **COMMON)
    found = []
    for lost in itertools.combinations(range(8), 2):
        kept = [client for client in range(8) if client not in lost]
        other, _ = whole.next(before, [data[client] for client in kept], clients=kept)
        same = [
            np.array_equal(a, b)
            for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(state), strict=True)
        ]
        found += [lost] if all(same) else []
    assert len(found) == 1


def test_who_drops_out_differs_from_round_to_round() -> None:
    data = make_data((4,) * 6)
    process = learning.scaffold(make_model(), clients=6, batch_size=4, failing=0.5)
    state, lost = process.initialize(), []
    for _ in range(4):
        before = jax.tree.leaves(state.memory)[0]
        state, _ = process.next(state, data)
        after = jax.tree.leaves(state.memory)[0]
        same = (np.asarray(before) == np.asarray(after)).reshape(6, -1).all(1)
        lost.append(tuple(np.flatnonzero(same)))
    assert all(len(one) == 3 for one in lost)
    assert len(set(lost)) > 1


def test_a_fraction_of_few_clients_drops_out_of_some_rounds() -> None:
    data = make_data((4,) * 3)
    process = learning.fed_avg(make_model(), batch_size=4, failing=0.15)
    state, present = process.initialize(seed=1), []
    for _ in range(20):
        state, metrics = process.next(state, data)
        present.append(int(metrics["clients"]))
    assert set(present) == {2, 3}
    assert 4 <= present.count(2) <= 15  # of an expected 9


@pytest.mark.parametrize("failing", [-0.1, 1.0])
def test_a_fraction_of_clients_is_one(failing: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        learning.fed_avg(make_model(), failing=failing)


def test_errors_name_clients_by_their_numbers() -> None:
    data = make_data()
    data[2]["x"][0, 0] = np.nan
    process = learning.fed_avg(make_model(), **COMMON)
    with pytest.raises(ClientError, match="client 17 passes NaN"):
        process.next(process.initialize(), data, clients=[4, 3, 17, 9])


def test_evaluation_asks_for_examples_and_known_options() -> None:
    with pytest.raises(TypeError, match="unexpected keyword arguments: chunks"):
        learning.Evaluation(make_model(), chunks=2)  # type: ignore[call-arg]
    state = learning.fed_avg(make_model()).initialize()
    with pytest.raises(ValueError, match="no client has examples"):
        learning.Evaluation(make_model())(state, make_data((0, 0)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: learning.fed_avg(make_model(), batch_sizes=3),  # here
        lambda: learning.scaffold(make_model(), clients=2, weighting="uniform"),  # here
        lambda: learning.mime_lite(make_model(), weighting="all"),  # here
        lambda: learning.Evaluation(make_model(), chunks=3),  # here
        lambda: learning.fed_sgd(make_model(), server_optimizer="sgd"),  # here
    ],
)
def test_errors_of_constructors_show_the_users_line(wrong: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        wrong()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    assert "# here" in str(frames[-1].line)
