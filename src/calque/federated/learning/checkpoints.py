"""Saves states on disk with orbax (the extra `orbax`), so that a killed process can continue."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calque.device.runtime.interrupts import waits
from calque.errors import with_user_frames
from calque.errors.handlers import is_of_handler
from calque.federated.learning.state import State, packed, unpacked
from calque.federated.learning.training import is_positive
from calque.tracing.core.files import replacing

_RUN = "run.json"
"""The file that describes the run whose states `learning.run` has saved."""

_MOST_SHOWN = 100
"""The maximum number of characters of a description in an error."""


class Checkpoints:
    """Saves the states of the last rounds in a directory.

    A state is saved completely or not at all, even if the process is killed meanwhile. A round
    depends only on the state and the data. So continuing from the last state repeats exactly the
    lost rounds, if the clients of a round are drawn by its number.

        with Checkpoints("runs/first") as checkpoints:
            state = checkpoints.latest(process.initialize())
            while int(state.round) < 100:
                state, metrics = process.next(state, data)
                checkpoints.save(state)

    Args:
        directory: the directory; it is created if needed.
        keep: the number of states to keep.
        every: save only rounds that are divisible by this number.

    Raises:
        ImportError: orbax is not installed.
        ValueError: `keep` or `every` is not at least 1.
    """

    @with_user_frames
    def __init__(self, directory: str | Path, keep: int = 3, every: int = 1) -> None:
        if not (is_positive(keep) and is_positive(every)):
            raise ValueError(
                f"keep and every must be integers of at least 1, not {keep!r} and {every!r}."
            )
        self._directory = Path(directory).absolute()
        orbax: Any = importlib.import_module("orbax.checkpoint")
        self._orbax = orbax
        self._every = every
        self._manager = orbax.CheckpointManager(
            self._directory,
            options=orbax.CheckpointManagerOptions(
                max_to_keep=keep, create=True, enable_async_checkpointing=False
            ),
        )

    @with_user_frames
    def save(self, state: State) -> None:
        """Write a state, and wait until it is on disk.

        A state that exists already is not written again.

        Raises:
            TypeError: `state` is not a state.
            ValueError: the directory has a different state of this round, or a state of a later
                round.
        """
        _require_state(state)
        number = int(state.round)
        if number % self._every:
            return
        arrays = [np.asarray(leaf) for leaf in packed(state)]
        last = self._manager.latest_step()
        if last is None or number > last:
            self._manager.save(number, args=self._orbax.args.StandardSave(_named(arrays)))
        elif number not in self._manager.all_steps() or not _same(self._read(number), arrays):
            raise ValueError(
                f"the state of round {number} cannot be saved: the directory holds round {last} "
                "of another run.\nContinue from latest(...), or use another directory."
            )

    @with_user_frames
    def latest(self, initial: State) -> State:
        """Returns the state of the last saved round; `initial` if there is none.

        Args:
            initial: a state of the same process, which shows the structure.

        Raises:
            TypeError: `initial` is not a state.
            ValueError: the state on disk is from a different model or algorithm.
        """
        _require_state(initial)
        number = self._manager.latest_step()
        if number is None:
            return initial
        wanted = [(leaf.shape, leaf.dtype) for leaf in packed(initial)]
        arrays = self._read(number)
        if [(array.shape, array.dtype) for array in arrays] != wanted:
            raise ValueError(
                f"the state of round {number} belongs to another model or algorithm.\nUse "
                "another directory, or the model and algorithm that it was saved with."
            )
        return unpacked([jax.numpy.asarray(array) for array in arrays], initial)

    @with_user_frames
    def require_run(self, description: Mapping[str, str]) -> None:
        """Check that the states belong to this run, or record the run if none is recorded.

        Args:
            description: describes everything that determines the results of a run.

        Raises:
            ValueError: the states belong to a different run.
        """
        path = self._directory / _RUN
        if path.exists():
            known = _read_run(path)
            odd = sorted(n for n in {*known, *description} if known.get(n) != description.get(n))
            if odd:
                was, now = (_shortened(one.get(odd[0], "none")) for one in (known, description))
                raise ValueError(
                    f"{self._directory} holds states of another run: {', '.join(odd)} differ "
                    f"({odd[0]} was {was}, and is {now}).\nUse another directory, or the "
                    "settings that they were saved with; to continue with new settings, call "
                    "latest(...) and process.next."
                )
        elif jax.process_index() == 0:
            with replacing(path) as part:
                part.write_text(json.dumps(dict(description), indent=1))

    def _read(self, number: int) -> list[Any]:
        try:
            found = self._manager.restore(number, args=self._orbax.args.StandardRestore())
            return [found[name] for name in sorted(found)]
        except Exception as error:
            if is_of_handler(error) or isinstance(error, MemoryError | PermissionError):
                raise
            raise ValueError(
                f"the state of round {number} cannot be read: files in "
                f"{self._directory / str(number)} are damaged or missing.\n"
                "Copy them again, or delete that folder to continue from the previous state."
            ) from error

    def close(self) -> None:
        """Release the directory."""
        self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    @waits  # until saving is finished
    def __exit__(self, *_: object) -> None:
        self.close()


def _read_run(path: Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_text())
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        raise ValueError(
            f"{path}, which says which run the states beside it belong to, is damaged.\nCopy it "
            "again, or delete it if you know that they belong to this run."
        )
    return known


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"


def _require_state(state: object) -> None:
    if not isinstance(state, State):
        raise TypeError(
            f"expected a state, not {type(state).__name__}.\nPass the result of initialize(), or "
            "the state of a round."
        )


def _same(arrays: list[Any], others: list[np.ndarray]) -> bool:
    """Returns True if the bits of all arrays are the same."""
    pairs = zip(arrays, others)
    return len(arrays) == len(others) and all(_bits(one) == _bits(other) for one, other in pairs)


def _bits(array: object) -> tuple[Any, ...]:
    array = np.asarray(array)
    return array.shape, array.dtype, array.tobytes()


def _named(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays by names whose sorted order is the arrays' order."""
    return {f"{index:06}": array for index, array in enumerate(arrays)}
