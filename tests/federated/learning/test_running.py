"""Many rounds: who takes part, what is noted, and where they begin."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from calque.federated import learning


def parts() -> tuple[learning.IterativeProcess, list[dict[str, np.ndarray]], torch.nn.Module]:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = [
        {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
        for n in (5, 3, 8, 4)
    ]
    module = torch.nn.Linear(4, 3)
    return learning.scaffold(module, clients=4, batch_size=4), data, module


def test_rounds_are_those_of_a_loop(capsys: pytest.CaptureFixture[str]) -> None:
    process, data, module = parts()
    evaluation = learning.Evaluation(module)
    found, history = learning.run(
        process, data, 5, participants=2, seed=7, evaluate=lambda s: evaluation(s, data), every=2
    )
    state = process.initialize(7)
    for number in range(5):
        chosen = sorted(learning.sample_clients(4, 2, number, 7).tolist())
        state, _ = process.next(state, [data[c] for c in chosen], clients=chosen)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert [row["round"] for row in history] == [1, 2, 3, 4, 5]
    assert ["test_accuracy" in row for row in history] == [False, True, False, True, True]
    assert "rounds: 100%" in capsys.readouterr().err


def test_rounds_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    process, data, _ = parts()
    whole, _ = learning.run(process, data, 4, progress=False)
    with learning.Checkpoints(tmp_path) as checkpoints:
        learning.run(process, data, 2, checkpoints=checkpoints, progress=False)
        found, history = learning.run(process, data, 4, checkpoints=checkpoints, progress=False)
    assert [row["round"] for row in history] == [3, 4]
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_checkpoints_of_another_run_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    _, data, module = parts()

    def made(rate: float = 0.1, size: int = 4, **more: Any) -> learning.IterativeProcess:
        return learning.fed_avg(module, client_optimizer=rate, batch_size=size, **more)

    def by_adam(rate: float) -> learning.IterativeProcess:
        return learning.fed_avg(module, client_optimizer=lambda p: torch.optim.Adam(p, lr=rate))

    other = torch.nn.Sequential(torch.nn.Linear(4, 3))
    norm = learning.aggregators.clipped
    changed = [*data[:3], {**data[3], "y": (data[3]["y"] + 1) % 3}]
    others: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("another seed", made(), data, {"seed": 1}),
        (r"client_optimizer differ \(client_optimizer was .*0\.1.* is .*0\.2", made(0.2), data, {}),
        ("client_optimizer differ", by_adam(0.1), data, {}),
        ("batches differ", made(size=2), data, {}),
        ("proximal differ", made(proximal=0.5), data, {}),
        ("aggregator differ", made(aggregator=norm(0.1)), data, {}),
        ("failing differ", made(failing=0.5), data, {}),
        ("module differ", learning.fed_avg(other, batch_size=4), data, {}),
        ("clients of the data, examples of the clients, participants differ", made(), data[:3], {}),
        ("examples of the clients differ", made(), [*data[1:], data[0]], {}),
        ("examples of the clients differ", made(), changed, {}),
        ("participants differ", made(), data, {"participants": 2}),
    ]
    with learning.Checkpoints(tmp_path) as checkpoints:
        options = {"checkpoints": checkpoints, "progress": False}
        learning.run(made(), data, 1, **options)
        for said, process, given, more in others:
            with pytest.raises(ValueError, match=said):
                learning.run(process, given, 2, **options, **more)
        # Chunks and padding do not change results.
        _, history = learning.run(made(chunk=2), learning.stage(data), 2, **options)
    assert len(history) == 1
    assert by_adam(0.1).description == by_adam(0.1).description != by_adam(0.2).description
    clipped = [made(aggregator=norm(bound)).description for bound in (0.1, 0.1, 0.2)]
    assert clipped[0] == clipped[1] != clipped[2]


def test_metrics_of_an_evaluation_are_numbers_of_any_kind() -> None:
    process, data, _ = parts()

    def metrics(value: Any) -> Any:
        options = {"evaluate": lambda state: value, "progress": False}
        return learning.run(process, data, 1, **options)[1][0]

    assert metrics({"a": torch.tensor(0.5), "b": np.float32(2), "c": np.ones(1), "d": True}) == {
        **metrics({}),
        "test_a": 0.5,
        "test_b": 2.0,
        "test_c": 1.0,
        "test_d": 1.0,
    }
    for wrong in (None, 0.5, {"a": np.ones(2)}, {"a": None}, {"a": torch.ones(2)}):
        with pytest.raises(TypeError, match="metrics must be a dict of numbers"):
            metrics(wrong)


def test_curves_are_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = [{"round": 1.0, "loss": 2.0}, {"round": 2.0, "loss": 1.0, "test_accuracy": 0.5}]
    learning.plot_curves({"one": history}, tmp_path / "new" / "loss.svg", "loss")
    assert "<svg" in (tmp_path / "new" / "loss.svg").read_text()
    with pytest.raises(KeyError, match="no round of 'one' has 'test_loss'"):
        learning.plot_curves({"one": history}, tmp_path / "other.png", "test_loss")


def test_a_round_without_participants_is_refused() -> None:
    process, data, _ = parts()
    with pytest.raises(ValueError, match="number of clients, 4, not 0"):
        learning.run(process, data, 1, participants=0, progress=False)


def test_rounds_without_examples_change_nothing() -> None:
    _, data, module = parts()
    none = {name: array[:0] for name, array in data[0].items()}
    process = learning.fed_avg(module, batch_size=4)
    found, history = learning.run(process, [none, data[0]], 8, participants=1, progress=False)
    chosen = [int(learning.sample_clients(2, 1, number)[0]) for number in range(8)]
    assert set(chosen) == {0, 1}
    assert [row["clients"] for row in history] == chosen
    assert [np.isnan(row["loss"]) for row in history] == [client == 0 for client in chosen]
    assert int(found.round) == 8
    with pytest.raises(ValueError, match="no client of this round has examples to train on: 0"):
        learning.run(process, [none], 8, progress=False)
