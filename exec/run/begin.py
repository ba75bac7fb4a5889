"""What all ranks do together before the first op: precomputed rows, initial values, draws that are made ahead."""

from halocast.exec.run.fresh import set_initial_values
from halocast.exec.run.importance import draw_ahead
from halocast.exec.run.state import RankState
from halocast.exec.transport.link import Halves


def begin(state: RankState) -> Halves[None]:
    """Make a rank ready for its first op."""
    yield from state.precompute()
    if state.scored is not state:
        yield from state.scored.precompute()
    yield from set_initial_values(state)
    yield from draw_ahead(state)
