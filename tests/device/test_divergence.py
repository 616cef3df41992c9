"""Processes that run other programs than the others are found."""

from calque.device.runtime.divergence import PublishedState, StartedProgram, difference


def state(names: str, ended: bool = False, count: int | None = None) -> PublishedState:
    last = [StartedProgram(name, f"train.py:{i}") for i, name in enumerate(names, 1)]
    return PublishedState(len(names) if count is None else count, last, ended)


def test_another_program_of_the_same_number_is_named_with_both_lines() -> None:
    found = difference(0, state("abc"), 1, state("abdc"), 0.0)
    assert found == ("program 3 of process 0 is c (train.py:3), and of process 1 d (train.py:3)")
    assert difference(0, state("abc"), 1, state("ab"), 99.0) is None
    assert difference(0, state("abc"), 1, state(""), 99.0) is None


def test_only_the_last_programs_are_known() -> None:
    assert difference(0, state("yz", count=100), 1, state("ab", count=2), 0.0) is None
    assert difference(0, state("yz", count=100), 1, state("xyz", count=100), 0.0) is None
    found = difference(0, state("yz", count=100), 1, state("yx", count=100), 0.0)
    assert found is not None
    assert "program 100" in found


def test_a_program_that_an_ended_process_never_runs_is_not_waited_for() -> None:
    assert difference(0, state("abc"), 1, state("ab", ended=True), 1.0) is None
    found = difference(0, state("abc"), 1, state("ab", ended=True), 5.0)
    assert found == (
        "process 0 waits in its program 3, c (train.py:3), but process 1 has ended after 2"
    )
    assert difference(0, state("abc"), 1, state("abc", ended=True), 5.0) is None
