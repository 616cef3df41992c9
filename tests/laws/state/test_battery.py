"""Each program does in each mode what it does on the CPU, or is refused as agreed; never else."""

import zlib

import pytest

from tests.laws.state.known_gaps import KNOWN_GAPS
from tests.laws.state.refusals import REFUSALS
from tests.laws.state.runner import REFUSED, RIGHT, reference, run
from tests.laws.state.table import load

PROGRAMS = load()
ROWS = [(p.name, mode) for p in PROGRAMS.values() for mode in p.modes]
SLOW = ("eager", "rows", "compile")


def _marks(name: str, mode: str) -> list[pytest.MarkDecorator]:
    """The slow modes, and four programs in five, run with the long suites."""
    marks = []
    if mode in SLOW or zlib.crc32(name.encode()) % 5:
        marks.append(pytest.mark.conformance)
    if (name, mode) in KNOWN_GAPS:
        # Not strict, because some of them pass if another one has run before.
        marks.append(pytest.mark.xfail(reason=KNOWN_GAPS[name, mode], strict=False))
    return marks


@pytest.mark.sampled(130)
@pytest.mark.parametrize(
    ("name", "mode"), [pytest.param(n, m, marks=_marks(n, m)) for n, m in ROWS]
)
def test_a_program_is_right_or_refused_as_agreed(name: str, mode: str) -> None:
    outcome = run(PROGRAMS[name], mode)
    listed = REFUSALS.get((name, mode))
    if listed is not None:
        assert outcome.kind == REFUSED, f"listed as refused: {outcome.message or outcome.kind}"
        assert listed in outcome.message
        return
    assert outcome.kind == RIGHT, outcome.message
    assert outcome.excess is None, outcome.excess


def test_every_listed_row_is_one() -> None:
    assert set(REFUSALS) <= set(ROWS)
    assert set(KNOWN_GAPS) <= set(ROWS)


@pytest.mark.conformance
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_shows_something_that_changes_or_repeats(name: str) -> None:
    assert len(reference(PROGRAMS[name])) >= 3, "three calls at least"
