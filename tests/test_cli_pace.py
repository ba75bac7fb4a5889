"""Measurements begin when the machine is calm and are made again if it was not at their end."""

from collections.abc import Iterator

from halocast.calibrate.measure.pace import ATTEMPTS, PATIENCE_S, PAUSE_S, Machine, reference_seconds


def machine(*paces: float) -> tuple[Machine, list[float]]:
    """A machine that has these paces one after the other, the last for ever; and the pauses that were made."""
    pauses: list[float] = []

    def told() -> Iterator[float]:
        yield from paces
        while True:
            yield paces[-1]

    source = told()
    return Machine(reference=lambda: next(source), pause=pauses.append), pauses


def test_a_calm_machine_is_measured_at_once() -> None:
    calm, pauses = machine(1.0, 1.1)
    assert calm.measure(lambda: "run") == ("run", 1.1)
    assert pauses == []


def test_a_busy_machine_is_waited_for() -> None:
    busy, pauses = machine(1.0, 2.0, 2.0, 1.0, 1.0)
    busy.now()
    assert busy.measure(lambda: "run") == ("run", 1.0)
    assert pauses == [PAUSE_S] * 2


def test_a_run_at_whose_end_others_use_the_cores_is_made_again() -> None:
    runs: list[int] = []
    busy, _ = machine(1.0, 1.5, 1.0, 1.0)
    assert busy.measure(lambda: runs.append(0)) == (None, 1.0)
    assert len(runs) == 2


def test_patience_ends_and_the_pace_is_told() -> None:
    runs: list[int] = []
    busy, pauses = machine(1.0, 3.0)
    busy.now()
    assert busy.measure(lambda: runs.append(0)) == (None, 3.0)
    assert len(runs) == ATTEMPTS
    assert sum(pauses) == ATTEMPTS * PATIENCE_S


def test_the_reference_takes_some_time() -> None:
    assert reference_seconds() > 0
