"""What a training leaves, rank by rank, and joined over the ranks: losses, scores, ages and errors of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from halocast.exec.launch.job import MASKS
from halocast.exec.run.notes import Key, RowError, Tally, join_ages, join_errors, join_tallies

if TYPE_CHECKING:
    from halocast.exec.run.state import RankState

Scores = dict[str, float]  # by mask; one without nodes has none
Hits = list[list[float]]  # (numerator, denominator) of every mask
RankResult = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a training: per epoch the loss and the scores over all ranks, and what was noted of rows."""

    losses: tuple[float, ...]
    accuracy: tuple[Scores, ...]  # of the training forward (dropout active, rows as stale as they were)
    evaluated: dict[int, Scores]  # epoch -> exact evaluation of the weights after it
    weight_hashes: tuple[tuple[str, ...], ...]  # per rank, per step; empty without audit
    ages: dict[Key, dict[int, int]]  # (reader, buffer) -> age in epochs -> rows read
    errors: tuple[RowError, ...]  # of stale rows; empty unless asked for
    tallies: dict[str, Tally]  # shares that handlers counted, by name


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's random numbers: dropout differs between ranks, weights do not."""
    return seed + 1000003 * rank


def result_of(state: "RankState", scores: Mapping[int, Hits]) -> RankResult:
    """What one rank leaves, as plain values."""
    return {
        "history": [asdict(epoch) for epoch in state.history],
        "scores": scores,
        "weight_hashes": state.weight_hashes,
        "ages": state.ages.as_json(),
        "received_rows": {name: channel.recv_rows for name, channel in state.channels.items()},
        "errors": [asdict(error) for error in state.errors],
        "tallies": {name: asdict(tally) for name, tally in state.tallies.items()},
    }


def joined(results: Sequence[RankResult], num_epochs: int) -> dict[str, Any]:
    """The fields of an Outcome from what all ranks left of the epochs that all of them did."""
    common = min(num_epochs, *(len(result["history"]) for result in results))
    epochs = list(zip(*(result["history"][:common] for result in results), strict=True))
    return {
        "losses": tuple(sum(rank["loss"] for rank in epoch) for epoch in epochs),
        "accuracy": tuple(scores_of([rank["hits"] for rank in epoch]) for epoch in epochs),
        "evaluated": {
            int(epoch): scores_of([result["scores"][epoch] for result in results]) for epoch in results[0]["scores"]
        },
        "weight_hashes": tuple(tuple(result["weight_hashes"]) for result in results),
        "ages": join_ages([result["ages"] for result in results], [result["received_rows"] for result in results]),
        "errors": join_errors([result["errors"] for result in results]),
        "tallies": join_tallies([result["tallies"] for result in results]),
    }


def scores_of(ranks: Sequence[Hits]) -> Scores:
    """Scores by mask from (numerator, denominator) of every rank; a mask without nodes has no score."""
    sums = {name: [sum(pairs[k][side] for pairs in ranks) for side in (0, 1)] for k, name in enumerate(MASKS)}
    return {name: top / bottom for name, (top, bottom) in sums.items() if bottom}
