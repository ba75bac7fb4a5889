"""The answer in three lines: the best exact method to a target, the best approximate one at equal accuracy, one GPU."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halocast.reports.converge.contests import Contest, contests, in_order, variations
from halocast.reports.converge.targets import Reached
from halocast.reports.converge.words import band, dollars, duration, epochs, gpus, plus_minus, points, times
from halocast.reports.curves import Converged
from halocast.reports.scores import Difference, paired
from halocast.reports.table import seconds

MOST_NAMED = 4  # methods that miss the target, each with its reason
SAME_PRICE = 0.005  # part of a price that nobody would tell apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer for one setting; what is None is not known or does not meet the target, and its line says which."""

    contest: Contest
    goal: str
    exact: Reached | None
    approximate: Reached | None
    alone: Reached | None
    difference: Difference | None  # of the approximate method's test score to the exact one's, both at the target

    @property
    def lines(self) -> tuple[str, str, str]:
        return (
            f"Exact, to {self.goal}: {self._exact()}.",
            f"Approximate, at the same accuracy: {self._approximate()}.",
            f"One GPU {self._alone()}.",
        )

    def _exact(self) -> str:
        best = self.exact
        return _missing(self.contest.exact) if best is None else f"{_name(best)}, {_cost(best)}"

    def _approximate(self) -> str:
        best = self.approximate
        if best is None:
            return _missing(self.contest.approximate)
        test = _difference(self.difference)
        ratio = _against(best, self.exact)
        kind = best.curve.approximation.value
        return f"{_name(best)} ({kind}), {_cost(best)}{ratio and ': '}{ratio}{test and '; '}{test}"

    def _alone(self) -> str:
        if not self.contest.alone:
            return "alone: not known, it was not asked for"
        if all(reach.curve.gpus == 1 for reach in self.contest.rivals):
            return "is all there is here"
        best = self.alone
        if best is None:
            return (
                f"is not enough: {_missing(self.contest.alone)}"
                if _is_sure(self.contest.alone)
                else (f"alone: not known, {_missing(self.contest.alone)}")
            )
        others = _against(best, self.exact)
        aside = f"; against {_name(self.exact)}: {others}" if self.exact and others else ""
        return f"is enough: {best.curve.label}, {_cost(best)}{aside}"

    def as_dict(self) -> dict[str, Any]:
        """The answer as plain figures; what is not known has no key."""
        chosen = {"exact": self.exact, "approximate": self.approximate, "one_gpu": self.alone}
        known = {name: _figures(reach) for name, reach in chosen.items() if reach is not None}
        apart = {"difference": asdict(self.difference)} if self.difference and self.approximate else {}
        return {"setting": dict(self.contest.values), "lines": list(self.lines), **known, **apart}


def answer(converged: Converged, contest: Contest) -> Answer:
    """The answer for a setting."""
    exact, approximate, alone = (_first(some) for some in (contest.exact, contest.approximate, contest.alone))
    known = paired(approximate.scores, exact.scores) if exact and approximate else None
    return Answer(
        contest=contest,
        goal=goal_text(converged),
        exact=exact,
        approximate=approximate,
        alone=alone,
        difference=known,
    )


def goal_text(converged: Converged) -> str:
    """The target: what was asked for, and the validation score that it is."""
    value = points(converged.target)
    return f"{value} on validation" if not _says_more(converged) else f"{converged.target_text} ({value} on validation)"


def _says_more(converged: Converged) -> bool:
    """Whether the target's text is more than its number."""
    try:
        float(converged.target_text)
    except ValueError:
        return True
    return False


def answer_lines(converged: Converged) -> list[str]:
    """What comes first everywhere: three lines for the first setting, what stands in, what changes with settings."""
    every = contests(converged)
    first = every[0] if every else Contest(values={}, curves=(), alone=())
    prefix = f"With {first.text}: " if len(every) > 1 else ""
    lines = [prefix + line for line in answer(converged, first).lines]
    stands_in = [stand_in_text(converged)] if converged.stands_in else []
    changes = [variation.text for variation in (*variations(every), *variations(every, exact=True))]
    return [*lines, *stands_in, *changes, *filter(None, [epoch_note(first)])]


def stand_in_text(converged: Converged) -> str:
    trained, timed = converged.trained.name, converged.timed.name
    return (
        f"Scores were measured on {trained}, which stands in for {timed}; seconds and prices are predicted for "
        f"{timed}. No score here is one of {timed}."
    )


def epoch_note(contest: Contest) -> str:
    """What to say if the method with the shortest epoch is not the first to meet the target; else nothing."""
    timed = [(reach.curve.epoch_s, reach) for reach in contest.rivals if reach.curve.fits]
    quickest = sorted(((s, reach) for s, reach in timed if s is not None), key=lambda item: item[0])
    ordered = in_order(contest.rivals)
    if not quickest or not ordered or quickest[0][1] is ordered[0]:
        return ""
    (epoch_s, quick), best = quickest[0], ordered[0]
    return (
        f"Seconds per epoch tell another story: {quick.curve.label} has the shortest epoch ({seconds(epoch_s)}), but "
        f"{_late(quick)}; {best.curve.label} meets the target first, in {duration(best.seconds)}."
    )


def _late(reach: Reached) -> str:
    if reach.seconds is not None and reach.epochs is not None:
        return f"needs {reach.epochs:.0f} of them, {duration(reach.seconds)}"
    return f"does not meet the target ({reach.text})"


def _first(some: Sequence[Reached]) -> Reached | None:
    return next(iter(in_order(some)), None)


def _name(reach: Reached) -> str:
    return f"{reach.curve.label} on {gpus(reach.curve.gpus)}"


def _cost(reach: Reached) -> str:
    """Time, epochs, price and test score at the target."""
    likely = f" (likely {band(reach.likely.low_s, reach.likely.high_s)})" if reach.likely else ""
    price = dollars(reach.price) if reach.price is not None else "no price known"
    test = plus_minus(reach.test.mean, reach.test.std) if reach.test else ""
    short = f", {reach.num_reached} of {len(reach.seeds)} seeds" if reach.num_reached < len(reach.seeds) else ""
    return f"{duration(reach.seconds)}{likely}, {epochs(reach.epochs or 0)}, {price}, test {test}{short}"


def _against(reach: Reached, other: Reached | None) -> str:
    """What is gained or lost against another one that meets the same target."""
    if other is None or not reach.seconds or not other.seconds:
        return ""
    ratio = other.seconds / reach.seconds
    speed = f"{times(ratio)} times as fast" if ratio >= 1 else f"takes {times(1 / ratio)} times as long"
    unsure = ", but their likely times overlap" if _overlap(reach, other) else ""
    return f"{speed}{_saved(reach, other)}{unsure}"


def _saved(reach: Reached, other: Reached) -> str:
    if reach.price is None or other.price is None:
        return ""
    saved = other.price - reach.price
    if abs(saved) < SAME_PRICE * other.price:
        return ", at the same price"
    return f", {dollars(abs(saved))} {'less' if saved > 0 else 'more'}"


def _overlap(reach: Reached, other: Reached) -> bool:
    a, b = reach.likely, other.likely
    if a is None or b is None or a.high_s is None or b.high_s is None:
        return False
    return a.low_s <= b.high_s and b.low_s <= a.high_s


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return f"test {plus_minus(difference.mean, difference.error, signed=True)} points"


def _missing(some: Sequence[Reached]) -> str:
    """Why none of some curves is an answer."""
    if not some:
        return "none was asked for"
    named = [f"{reach.curve.label} {_why(reach)}" for reach in some[:MOST_NAMED]]
    more = f" and {len(some) - MOST_NAMED} more" if len(some) > MOST_NAMED else ""
    return f"none: {', '.join(named)}{more}" if len(some) > 1 else named[0]


def _why(reach: Reached) -> str:
    if not reach.curve.fits:
        return "does not fit in memory"
    if reach.epochs is not None:
        return f"needs {epochs(reach.epochs)}, of which the time is not known ({reach.curve.reason or 'no prediction'})"
    return f"({reach.text})"


def _is_sure(some: Sequence[Reached]) -> bool:
    """Whether it is known that none of them meets the target in time."""
    return all(not reach.curve.fits or (bool(reach.seeds) and reach.epochs is None) for reach in some)


def _figures(reach: Reached) -> dict[str, Any]:
    """The figures of a line, in SI units and USD; scores are shares."""
    test, likely = reach.test, reach.likely
    return {
        "case": reach.curve.label,
        "gpus": reach.curve.gpus,
        "epochs": reach.epochs,
        "seconds": reach.seconds,
        "likely_low_s": likely and likely.low_s,
        "likely_high_s": likely and likely.high_s,
        "price": reach.price,
        "test": test and test.mean,
        "test_std": test and test.std,
        "num_reached": reach.num_reached,
        "num_seeds": len(reach.seeds),
    }
