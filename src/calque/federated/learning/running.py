"""Runs many rounds, with a progress bar, and plots their metrics."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from calque.errors import with_user_frames
from calque.federated.learning.checkpoints import Checkpoints
from calque.federated.learning.partitioning import sample_clients
from calque.federated.learning.process import IterativeProcess
from calque.federated.learning.refusals import NoExamples
from calque.federated.learning.staging import digest_of, labelled
from calque.federated.learning.state import State
from calque.federated.learning.training import is_positive
from calque.federated.ragged import take

_OF_NOBODY = {"loss": np.nan, "examples": 0, "clients": 0}

History = list[dict[str, float]]
"""The number and metrics of each round."""


@with_user_frames
def run(
    process: IterativeProcess,
    data: Any,
    rounds: int,
    *,
    participants: int | None = None,
    seed: int = 0,
    evaluate: Callable[[State], Mapping[str, Any]] | None = None,
    every: int = 10,
    checkpoints: Checkpoints | None = None,
    progress: bool = True,
) -> tuple[State, History]:
    """Runs rounds up to a given number, from the beginning or from the last checkpoint.

    A round in which no client has examples does not change the state; its metrics count no clients,
    and the loss is NaN.

    Args:
        process: an algorithm.
        data: the examples of all clients, as for `IterativeProcess.next`.
        rounds: the total number of rounds, including those before the checkpoint.
        participants: the number of clients of a round, which are drawn by `sample_clients`; by
            default all participate.
        seed: the seed of the state, and of the draws of participants.
        evaluate: a function of the state that returns metrics, which are added to the round's
            metrics as `test_…`.
        every: call `evaluate` after each this many rounds, and after the last.
        checkpoints: saves the states; the history then begins after the last saved state.
        progress: whether to show a progress bar (with several processes, in the first).

    Returns:
        The state, and the metrics of each round.

    Raises:
        ValueError: no client has examples, or the checkpoints belong to a different run: with a
            different seed, number of clients or participants, examples, module, algorithm or
            setting.

    >>> import numpy as np, torch
    >>> from calque.federated import learning
    >>> data = [{"x": np.eye(2, dtype=np.float32), "y": np.array([0, 1])}] * 3
    >>> process = learning.fed_avg(torch.nn.Linear(2, 2))
    >>> state, history = learning.run(process, data, 4, participants=2, progress=False)
    >>> len(history), sum(int(row["clients"]) for row in history)
    (4, 8)
    """
    if not (is_positive(every) and (rounds == 0 or is_positive(rounds))):
        raise ValueError(
            "rounds must be a non-negative integer and every an integer of at least 1, not "
            f"{rounds!r} and {every!r}"
        )
    staged = labelled(data)
    clients = staged.length.shape[0]
    count = clients if participants is None else participants
    state = process.initialize(seed)
    if checkpoints is not None:
        run = {
            "seed": seed,
            "clients of the data": clients,
            "participants": count,
            "examples of the clients": digest_of(staged),
        }
        state = _resumed(checkpoints, state, {**_worded(run), **process.description})
    history: History = []
    begun = int(state.round)
    hidden = not progress or jax.process_index() > 0
    with tqdm(total=rounds, initial=begun, desc="rounds", disable=hidden) as bar:
        for number in range(begun, rounds):
            chosen = sample_clients(clients, count, number, seed)
            chosen = sorted(chosen.tolist())
            some = take(staged, np.array(chosen))
            try:
                state, metrics = process.next(state, some, clients=chosen)
            except NoExamples:
                if not process.can_train(staged):
                    raise
                state, metrics = replace(state, round=state.round + 1), _OF_NOBODY
            if checkpoints is not None:
                checkpoints.save(state)
            row = {"round": float(number + 1), **_floats(metrics)}
            if evaluate is not None and ((number + 1) % every == 0 or number + 1 == rounds):
                row |= {f"test_{name}": v for name, v in _floats(evaluate(state)).items()}
            history.append(row)
            bar.set_postfix(loss=f"{row['loss']:.4f}", refresh=False)
            bar.update()
    return state, history


@with_user_frames
def plot_curves(
    histories: Mapping[str, History], path: str | Path, metric: str = "test_accuracy"
) -> None:
    """Plots a metric over the rounds, one curve for each history (needs matplotlib).

    Args:
        histories: the histories that `run` returns, by the names of their curves.
        path: the path of the picture; its suffix determines the format.
        metric: a key of the histories' rows; rounds without it are skipped.

    Raises:
        KeyError: no round of a history has the metric.
    """
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 4), layout="tight")
    axes = figure.subplots()
    for name, history in histories.items():
        points = [(row["round"], row[metric]) for row in history if metric in row]
        if not points:
            raise KeyError(f"no round of {name!r} has {metric!r}")
        axes.plot(*zip(*points, strict=True), label=name)
    axes.set(xlabel="round", ylabel=metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _resumed(checkpoints: Checkpoints, initial: State, run: Mapping[str, str]) -> State:
    """Returns the state of the last saved round; `initial` if there is none.

    Raises:
        ValueError: the states belong to a different run.
    """
    state = checkpoints.latest(initial)
    if not np.array_equal(state.key, initial.key):
        raise ValueError(
            f"the state of round {int(state.round)} belongs to a run with another seed.\nUse "
            "another directory, or the seed that it was saved with."
        )
    checkpoints.require_run(run)
    return state


def _worded(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    try:
        items = metrics.items()
        return {name: float(v.item() if hasattr(v, "item") else v) for name, v in items}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise TypeError(f"metrics must be a dict of numbers, not {metrics!r}") from None
