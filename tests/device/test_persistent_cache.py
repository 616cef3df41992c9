"""Compiled programs outlive the process, in a folder that stays small and whole."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
import torch
from jax._src import compilation_cache as jax_cache

import calque
from calque.device.runtime.persistent_cache import DEFAULT, _unusable
from calque.device.runtime.stored_programs import Store
from tests import new_process

PROGRAM = """
import warnings
warnings.simplefilter("error")
import jax
if {configured!r}:
    jax.config.update("jax_compilation_cache_dir", {configured!r})
import calque, torch
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("cache_hits")))
x = torch.arange(6.0, device="jax").reshape(2, 3)
assert calque.jit(lambda x: (x @ x.T).cos())(x).shape == (2, 2)
print(sum(hits), calque.compilation_cache())
"""


def _run(folder: str, configured: str = "") -> tuple[int, str]:
    """How often a new process found a program, and where it looks for them."""
    environment = {**os.environ, "CALQUE_CACHE_DIR": folder}
    made = new_process.run(PROGRAM.format(configured=configured), env=environment)
    assert made.returncode == 0, made.stderr[-3000:]
    hits, place = made.stdout.split()
    return int(hits), place


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    hits, place = _run(str(tmp_path))
    kept = _files(tmp_path)
    assert hits == 0 and kept and Path(place).parent == tmp_path
    hits, _ = _run(str(tmp_path))
    assert hits == len(kept)
    assert _files(tmp_path) == kept


@pytest.mark.conformance
def test_what_jax_was_told_stays(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    _, place = _run(str(ours), str(theirs))
    assert Path(place) == theirs
    assert not ours.exists()


def test_an_unknown_home_folder_is_said_and_the_cache_is_off() -> None:
    program = "import calque; print(calque.compilation_cache())"
    environment = {**os.environ, "CALQUE_CACHE_DIR": "~nobody_of_this_name/programs"}
    made = new_process.run(program, env=environment)
    assert made.stdout == "None\n"
    assert "CacheWarning" in made.stderr and "names an unknown home folder" in made.stderr


@pytest.fixture
def put_back():
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", True)
    jax_cache.reset_cache()
    yield
    calque.compilation_cache(None)
    jax.config.update("jax_enable_compilation_cache", enabled)
    jax_cache.reset_cache()


@pytest.mark.usefixtures("put_back")
def test_the_cache_is_moved_and_switched_off(tmp_path: Path) -> None:
    assert calque.compilation_cache() is None  # the default in tests
    one = calque.compilation_cache(tmp_path / "one", max_bytes=DEFAULT)
    assert one is not None and one.parent == tmp_path / "one" and calque.compilation_cache() == one
    torch.arange(7.0, device="jax").sinh().sum()
    kept = _files(one)
    assert kept
    two = calque.compilation_cache(tmp_path / "two")
    assert two is not None
    torch.arange(8.0, device="jax").sinh().sum()
    assert _files(two) and _files(one) == kept
    before = _files(two)
    assert calque.compilation_cache(None) is None
    torch.arange(9.0, device="jax").sinh().sum()
    assert _files(tmp_path) == kept | before
    assert jax.config.jax_compilation_cache_dir is None
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0


@pytest.mark.usefixtures("put_back")
def test_a_folder_given_to_jax_afterwards_is_jaxs_own(tmp_path: Path) -> None:
    calque.compilation_cache(tmp_path / "ours")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    cache, _ = jax_cache.get_file_cache(str(tmp_path / "theirs"))
    assert not isinstance(cache, Store)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0


def test_a_size_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes must be a number of bytes, not -1"):
        calque.compilation_cache(max_bytes=-1)


# The files ----------------------------------------------------------------------------------------


def test_damaged_entries_are_absent_and_can_be_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path, 1000)
    assert store.get("a") is None
    store.put("a", b"program")
    assert store.get("a") == b"program"
    (path,) = _files(tmp_path)
    for damaged in (path.read_bytes()[:-1], b"", b"q" + path.read_bytes()[1:]):
        path.write_bytes(damaged)
        assert store.get("a") is None
        store.put("a", b"program")
        assert store.get("a") == b"program"


def test_what_was_used_least_recently_goes(tmp_path: Path) -> None:
    store = Store(tmp_path, 1000)
    for index in range(8):
        store.put(str(index), bytes(100))
        path = next(path for path in _files(tmp_path) if path.name.startswith(str(index)))
        os.utime(path, ns=(index, index))
    assert store.get("0") is not None  # mark it as used
    for index in range(8, 12):
        store.put(str(index), bytes(100))
    assert sum(path.stat().st_size for path in _files(tmp_path)) <= 1000
    kept = [index for index in range(12) if store.get(str(index)) is not None]
    assert 0 in kept and 11 in kept and 1 not in kept and 2 not in kept


def test_another_stores_entries_count_too(tmp_path: Path) -> None:
    one, other = Store(tmp_path, 1000), Store(tmp_path, 1000)
    for index in range(30):
        (one, other)[index % 2].put(str(index), bytes(90))
    assert sum(path.stat().st_size for path in _files(tmp_path)) <= 2000


def test_only_an_abandoned_half_written_file_goes(tmp_path: Path) -> None:
    abandoned, written_now = tmp_path / "tmp1", tmp_path / "tmp2"
    for path in (abandoned, written_now):
        path.write_bytes(bytes(900))
    os.utime(abandoned, (0, 0))
    Store(tmp_path, 800).put("a", bytes(100))
    assert written_now.exists() and not abandoned.exists()


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    def work(seed: int) -> None:
        store = Store(tmp_path, 5000)
        for turn in range(60):
            key = str((turn * 7 + seed) % 20)
            found = store.get(key)
            assert found in (None, key.encode() * 200)
            store.put(key, key.encode() * 200)

    with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
        warnings.simplefilter("error")
        list(pool.map(work, range(4)))
    assert all(path.suffix == ".xla" for path in _files(tmp_path))


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "below", 1000)
    with pytest.warns(calque.CacheWarning, match="CALQUE_CACHE_DIR"):
        store.put("a", b"program")
    store.put("b", b"program")  # a second warning would be an error
    assert store.get("a") is None
    assert "cannot be created" in (_unusable(tmp_path / "file" / "below") or "")
    assert _unusable(tmp_path) is None
