"""Modules of any kind are client models: BatchNorm, dropout, embeddings, several inputs."""

import copy
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

RNG = np.random.default_rng(0)


def classified(*sizes: int) -> list[dict[str, Any]]:
    return [
        {"x": RNG.normal(size=(n, 4)).astype(np.float32), "y": RNG.integers(0, 3, n)} for n in sizes
    ]


def test_batchnorm_statistics_are_averaged_and_exact() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    data = classified(4, 8)
    process = learning.fed_avg(module, client_optimizer=0.1, batch_size=4)
    state, _ = process.next(process.initialize(), data)
    states = []
    for client in data:
        local = copy.deepcopy(module).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
        for start in range(0, len(client["y"]), 4):
            x, y = (torch.tensor(client[n][start : start + 4]) for n in "xy")
            optimizer.zero_grad()
            F.cross_entropy(local(x), y).backward()
            optimizer.step()
        states.append(local.state_dict())
    for name in ("0.weight", "1.weight", "1.running_mean", "1.running_var"):
        wanted = (states[0][name] * 4 + states[1][name] * 8) / 12
        got = {**state.parameters, **state.buffers}[name]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    assert state.buffers["1.num_batches_tracked"].dtype == np.int32


def test_batchnorm_refuses_batches_that_would_have_to_be_filled_up() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    process = learning.fed_avg(module, batch_size=4)
    with pytest.raises(
        ClientError, match="client 1 has 7 examples, which is not a multiple of the batch size 4"
    ):
        process.next(process.initialize(), classified(4, 7))
    process = learning.fed_avg(module, batch_size=4, drop_remainder=True)
    _, metrics = process.next(process.initialize(), classified(4, 7))
    assert int(metrics["examples"]) == 8


def test_dropout_is_random_in_training_and_off_in_evaluation() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    data = classified(16, 16)
    process = learning.fed_avg(module, client_optimizer=0.0, batch_size=16)
    state = process.initialize()
    losses = []
    for _ in range(3):
        state, metrics = process.next(state, data)
        losses.append(float(metrics["loss"]))
    assert len(set(losses)) == 3
    found = learning.Evaluation(module)(state, data)["loss"]
    x, y = (torch.tensor(np.concatenate([c[n] for c in data])) for n in "xy")
    np.testing.assert_allclose(found, F.cross_entropy(module.eval()(x), y).item(), rtol=1e-5)


def test_clients_draw_different_masks() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    one = classified(16)[0]
    process = learning.fed_avg(module, client_optimizer=0.1, batch_size=16)
    both, _ = process.next(process.initialize(), [one, one])
    alone, _ = process.next(process.initialize(), [one])
    assert np.abs(both.parameters["1.weight"] - alone.parameters["1.weight"]).max() > 1e-6


def test_embeddings() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    data = [{"x": RNG.integers(0, 10, (n, 3)), "y": RNG.integers(0, 3, n)} for n in (5, 2)]
    process = learning.fed_avg(module, client_optimizer=0.1, batch_size=8)
    state, _ = process.next(process.initialize(), data)
    states = []
    for client in data:
        local = copy.deepcopy(module)
        F.cross_entropy(local(torch.tensor(client["x"])), torch.tensor(client["y"])).backward()
        states.append({n: p.detach() - 0.1 * p.grad for n, p in local.named_parameters()})
    for name in states[0]:
        wanted = (states[0][name] * 5 + states[1][name] * 2) / 7
        np.testing.assert_allclose(state.parameters[name], wanted, rtol=1e-4, atol=1e-6)


def test_several_inputs_and_a_loss_of_ones_own() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, features: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.linear(features).squeeze(-1) * scale

    torch.manual_seed(0)
    module = Scaled()
    x, scale, y = RNG.normal(size=(6, 4)), RNG.normal(size=6), RNG.normal(size=6)
    data = [{"x": {"features": x, "scale": scale}, "y": y}]
    process = learning.fed_avg(
        module, lambda out, y: (out - y) ** 2, client_optimizer=0.1, batch_size=6
    )
    state, metrics = process.next(process.initialize(), data)
    tensors = [torch.tensor(a, dtype=torch.float32) for a in (x, scale, y)]
    loss = ((module(*tensors[:2]) - tensors[2]) ** 2).mean()
    loss.backward()
    np.testing.assert_allclose(metrics["loss"], loss.item(), rtol=1e-5)
    wanted = module.linear.weight.detach() - 0.1 * module.linear.weight.grad
    np.testing.assert_allclose(state.parameters["linear.weight"], wanted, rtol=1e-4)
    assert "accuracy" not in learning.Evaluation(module, lambda o, y: (o - y) ** 2)(state, data)


def test_buffers_that_no_client_changes_stay_exactly_as_they_are() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(torch.softmax(x + self.mask, -1))

    module = Masked(4, 3)
    module.register_buffer("mask", torch.tensor([0.0, -float("inf"), 0.0, 3e38]))
    module.register_buffer("indices", torch.tensor([2**24 + 1, -3]))
    module.register_buffer("flags", torch.tensor([True, False]))
    process = learning.fed_avg(module, batch_size=4, chunk=2)
    state, _ = process.next(process.initialize(), classified(5, 0, 7))
    for name, buffer in module.named_buffers():
        np.testing.assert_array_equal(state.buffers[name], buffer)


def test_counts_of_batches_are_rounded() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    process = learning.fed_avg(module, batch_size=2)
    state, _ = process.next(process.initialize(), classified(2, 4))
    assert int(state.buffers["0.num_batches_tracked"]) == 2  # (2 * 1 + 4 * 2) / 6 is 1.67


def test_constants_of_a_forward_and_a_loss_may_be_on_the_cpu() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Embedding(4, 3)

        def forward(self, x: Any) -> Any:
            return (x[..., None] * self.places(torch.arange(x.shape[1]))).mean(1)

    rates = torch.tensor([1.0, 2.0, 0.5])

    def loss(output: Any, target: Any) -> Any:
        return F.cross_entropy(output, target, weight=rates, reduction="none")

    module, (data,) = Placed(), classified(5)
    process = learning.fed_avg(module, loss, batch_size=5)
    state, _ = process.next(process.initialize(), [data])
    loss(module(torch.tensor(data["x"])), torch.tensor(data["y"])).mean().backward()
    weight = module.places.weight
    expected = (weight - 0.1 * weight.grad).detach()  # type: ignore[operator]
    np.testing.assert_allclose(state.parameters["places.weight"], expected, rtol=1e-5, atol=1e-6)


def test_a_state_of_another_process_is_refused() -> None:
    data = classified(4)
    process = learning.fed_avg(nn.Linear(4, 3))
    others = [learning.fed_avg(nn.Linear(4, 2)), learning.scaffold(nn.Linear(4, 3), clients=1)]
    for other in others:
        with pytest.raises(ValueError, match="another model or algorithm"):
            process.next(other.initialize(), data)
    with pytest.raises(TypeError, match="needs a state, not list"):
        process.next(data, process.initialize())  # type: ignore[arg-type]


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        learning.fed_avg(nn.Linear)  # type: ignore[arg-type]


def test_the_users_module_is_not_changed() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    before = copy.deepcopy(module.state_dict())
    process = learning.fed_avg(module, batch_size=4)
    process.next(process.initialize(), classified(4))
    assert not module.training
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name])


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_what_was_trained_goes_back_into_a_module(device: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight
            self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(self.second(self.first(x))))

    torch.manual_seed(0)
    module = Tied()
    data = classified(4, 8)
    process = learning.fed_avg(module, batch_size=4)
    state, _ = process.next(process.initialize(), data)
    trained = Tied().to(device).eval()
    learning.load(trained, state)
    x, y = (torch.tensor(np.concatenate([c[n] for c in data]), device=device) for n in "xy")
    wanted = F.cross_entropy(trained(x), y).item()
    got = learning.Evaluation(module)(state, data)["loss"]
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
    assert trained.second.weight is trained.first.weight
    with pytest.raises(KeyError, match="norm.weight"):
        learning.load(nn.Linear(4, 3), state)


def test_data_may_be_torch_tensors() -> None:
    module = nn.Linear(4, 3)
    data = classified(4, 2)
    tensors = [{n: torch.tensor(v) for n, v in client.items()} for client in data]
    process = learning.fed_avg(module)
    first = process.next(process.initialize(), data)[0]
    second = process.next(process.initialize(), tensors)[0]
    np.testing.assert_array_equal(first.parameters["weight"], second.parameters["weight"])


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_sgd", "scaffold", "mime_lite"])
def test_parameters_that_require_no_gradient_stay_as_they_are(algorithm: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)
    options = {"clients": 2} if algorithm == "scaffold" else {}
    process = getattr(learning, algorithm)(module, batch_size=4, **options)
    state = process.initialize()
    after, _ = process.next(state, classified(5, 3))
    assert set(after.parameters) == set(state.parameters)
    for name, before in state.parameters.items():
        moved = float(np.abs(after.parameters[name] - before).max())
        assert (moved == 0) == (name == "0.weight")


def test_a_weight_decay_of_the_server_spares_what_is_frozen() -> None:
    import optax

    module = nn.Linear(4, 3)
    module.weight.requires_grad_(False)
    server = optax.adamw(0.1, weight_decay=0.5)
    process = learning.fed_avg(module, server_optimizer=server)
    state, _ = process.next(process.initialize(), classified(5))
    np.testing.assert_array_equal(state.parameters["weight"], module.weight.detach())


def test_a_loss_that_is_no_number_for_each_example_is_refused() -> None:
    process = learning.fed_avg(nn.Linear(4, 3), F.cross_entropy, batch_size=4)
    with pytest.raises(TypeError, match=r"the loss of 4 examples is of shape \[\]"):
        process.next(process.initialize(), classified(5))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"epochs": 0}, {"epochs": 1.5}])
def test_batches_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        learning.fed_avg(nn.Linear(4, 3), **options)


def test_examples_without_labels_are_refused() -> None:
    process = learning.fed_avg(nn.Linear(4, 3))
    with pytest.raises(ClientError, match="must have x and y"):
        process.next(process.initialize(), [{"x": np.ones((2, 4), np.float32)}])


def test_a_round_can_be_differentiated_with_respect_to_the_servers_model() -> None:
    """The mean of what clients have after a step, against the same by hand."""
    import dataclasses

    import jax
    import jax.numpy as jnp

    torch.manual_seed(0)
    module = nn.Linear(4, 3)
    data = classified(4, 2)
    process = learning.fed_avg(module, client_optimizer=0.1, batch_size=8)
    state = process.initialize()

    def after(weight: Any) -> Any:
        changed = {**state.parameters, "weight": weight}
        return process.next(dataclasses.replace(state, parameters=changed), data)[0]

    def by_hand(weight: Any) -> Any:
        def loss(weight: Any, x: Any, y: Any) -> Any:
            scores = jax.nn.log_softmax(x @ weight.T + state.parameters["bias"])
            return -jnp.take_along_axis(scores, y[:, None], 1).mean()

        new = [weight - 0.1 * jax.grad(loss)(weight, c["x"], jnp.asarray(c["y"])) for c in data]
        return (new[0] * 4 + new[1] * 2) / 6

    direction = jnp.arange(12.0).reshape(3, 4)
    wanted = jax.grad(lambda w: (by_hand(w) * direction).sum())(state.parameters["weight"])
    got = jax.grad(lambda w: (after(w).parameters["weight"] * direction).sum())(
        state.parameters["weight"]
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_a_state_of_other_shapes_is_not_broadcast_into_a_module() -> None:
    state = learning.fed_avg(nn.Linear(1, 3)).initialize()
    module = nn.Linear(4, 3)
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match=r"'weight' has shape \[3, 4\] in the module"):
        learning.load(module, state)
    assert torch.equal(module.weight, before)


def test_data_that_are_no_list_of_labelled_examples_are_refused() -> None:
    module = nn.Linear(4, 3)
    process = learning.fed_avg(module)
    client = classified(4)[0]
    for wrong in (client, (one for one in [client])):
        with pytest.raises(ClientError, match="must be a list with the examples of each client"):
            process.next(process.initialize(), wrong)
    with pytest.raises(ClientError, match="must have x and y"):
        learning.Evaluation(module)(process.initialize(), [{"x": client["x"]}])


def test_training_in_double_precision_is_refused_where_jax_has_32_bits() -> None:
    with jax.enable_x64(False), pytest.raises(TypeError, match="'weight' has dtype float64"):
        learning.fed_avg(torch.nn.Linear(2, 2).double())
    with jax.enable_x64(True):
        learning.fed_avg(torch.nn.Linear(2, 2).double())


def test_a_deep_copy_of_a_process_is_the_process() -> None:
    process = learning.fed_avg(torch.nn.Linear(2, 2))
    assert copy.deepcopy(process) is process


def test_a_compiled_module_is_trained_and_loaded_as_the_one_it_was_made_of() -> None:
    module = nn.Linear(3, 2)
    compiled: Any = torch.compile(module)
    data = [{"x": np.eye(3, dtype=np.float32), "y": np.array([0, 1, 0])}]
    state, _ = (process := learning.fed_avg(compiled)).next(process.initialize(), data)
    assert set(state.parameters) == {"weight", "bias"}
    learning.load(compiled, state)
    np.testing.assert_array_equal(module.weight.detach().numpy(), state.parameters["weight"])


def test_labels_may_be_a_dict() -> None:
    def loss(output: Any, y: Any) -> torch.Tensor:
        return F.cross_entropy(output, y["label"], reduction="none") * y["weight"]

    module = nn.Linear(4, 3)
    data = [
        {"x": one["x"], "y": {"label": one["y"], "weight": np.float32([0.5] * len(one["y"]))}}
        for one in classified(5, 2)
    ]
    process = learning.fed_avg(module, loss, batch_size=4)
    state = process.initialize()
    halved, _ = process.next(state, data)
    plain = [{"x": one["x"], "y": one["y"]["label"]} for one in data]
    wanted, _ = learning.fed_avg(module, client_optimizer=0.05, batch_size=4).next(state, plain)
    np.testing.assert_allclose(
        halved.parameters["weight"], wanted.parameters["weight"], rtol=1e-5, atol=1e-6
    )
    found = learning.Evaluation(module, loss)(state, data)
    assert "accuracy" not in found
    plain_loss = learning.Evaluation(module)(state, plain)["loss"]
    np.testing.assert_allclose(2 * found["loss"], plain_loss, rtol=1e-5)


def test_a_loss_and_an_evaluation_may_be_random() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x + torch.randn_like(x))

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output + torch.randn_like(output), y, reduction="none")

    module, data = Noisy(), classified(4) * 2
    process = learning.fed_avg(module, loss, batch_size=4)
    evaluate = learning.Evaluation(module, loss)
    state = process.initialize(0)
    after, _ = process.next(state, data)
    again, _ = process.next(state, data)
    np.testing.assert_array_equal(
        after.parameters["layer.weight"], again.parameters["layer.weight"]
    )
    first, second, other = (
        float(evaluate(one, data)["loss"]) for one in (state, state, process.initialize(1))
    )
    assert first == second != other
    alone = float(evaluate(state, data[:1])["loss"])
    assert alone != first  # the second client has the same examples but different noise


def test_an_optimizer_on_the_server_may_keep_a_key() -> None:
    module, data = nn.Linear(4, 3), classified(4)
    process = learning.fed_opt(module, server_optimizer=optax.noisy_sgd(1.0, key=0))
    first, _ = process.next(process.initialize(), data)
    second, _ = process.next(first, data)
    assert not np.allclose(first.parameters["weight"], second.parameters["weight"])
