"""Whether a schedule is exact, stale or sampled is read off its ops: options and sizes decide it, no name does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from schedules import legal_schedules, op, two_rank_exchange
from training import metis_parts, random_parts, small_graph, spec_for

from halocast.graph import build_parts, from_card, from_parts, load_card
from halocast.graph.halo import Halo
from halocast.methods import METHODS
from halocast.methods.bns import What
from halocast.models.spec import ModelSpec
from halocast.schedule.approximation import Approximation, approximation_of
from halocast.schedule.ir import AllReduce, Buffer, Kernel, Kind, Lane, Numbers, Op, Role, Rows, Sample, Schedule

EXACT, STALE, SAMPLED = Approximation.EXACT, Approximation.STALE, Approximation.SAMPLED
GRAPH = small_graph(nodes=400, degree=10)
SPEC = spec_for(GRAPH)
HALO = from_parts(build_parts(GRAPH, metis_parts(GRAPH, 4)))
ALONE = from_parts(build_parts(GRAPH, np.zeros(GRAPH.num_nodes, np.int32)))


def made(method: str, halo: Halo = HALO, spec: ModelSpec = SPEC, **options: Any) -> Schedule:
    chosen = METHODS[method]
    return chosen.make(halo, spec, chosen.options(**options), Numbers.FLOAT32)


BY_DEFAULT = {
    "vanilla": EXACT,
    "pipegcn": STALE,
    "pipegcn-f": STALE,
    "pipegcn-g": STALE,
    "digest": STALE,
    "digest-a": STALE,
    "bns": SAMPLED,
    "gnnpipe": STALE,
    "psc": SAMPLED,
    "pipegcn-gf": STALE,
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_its_default_options(method: str) -> None:
    assert approximation_of(made(method)) is BY_DEFAULT[method]


OPTIONS: list[tuple[str, dict[str, Any], Approximation]] = [
    ("pipegcn", {"lag": 0}, EXACT),
    ("pipegcn", {"lag": 3, "warmup": "exact"}, STALE),
    ("bns", {"rate": 1.0}, EXACT),
    ("bns", {"rate": 1.0, "draw": "bernoulli", "mean": "renormalised"}, EXACT),
    ("bns", {"rate": 0.999, "draw": "bernoulli"}, SAMPLED),  # on average all, to a whole row
    ("bns", {"rate": 0.5, "draw": "floor"}, SAMPLED),  # as many rows in every epoch, but others
    ("bns", {"rate": 0.0}, SAMPLED),
    ("bns", {"rate": 0.9, "what": What.EDGES}, SAMPLED),
    ("bns", {"rate": 1.0, "what": What.EDGES}, EXACT),
    ("bns", {"rate": 0.9, "what": What.DROPEDGE}, SAMPLED),
    ("bns", {"rate": 1.0, "what": What.DROPEDGE}, EXACT),
    ("psc", {"tau": 0, "eps": 1.0}, EXACT),
    ("psc", {"tau": 0, "eps": 1.0, "draws": "each", "cache": 0.3}, EXACT),
    ("psc", {"tau": 1, "eps": 1.0}, STALE),
    ("psc", {"tau": 0, "eps": 0.9}, SAMPLED),
    ("psc", {"tau": 2, "eps": 0.1, "refresh": 0}, SAMPLED),  # and stale
    ("digest", {"interval": 1}, STALE),
    ("digest-a", {"interval": 1, "bound": 0}, STALE),
    ("gnnpipe", {"freeze": 1}, STALE),
    ("gnnpipe", {"late_gradients": True, "stages": 2}, STALE),
    ("gnnpipe", {"stages": 1, "ways": 4}, EXACT),  # one chunk each, whose rows the others get fresh
]


@pytest.mark.parametrize(("method", "options", "expected"), OPTIONS)
def test_options_decide_not_names(method: str, options: dict[str, Any], expected: Approximation) -> None:
    assert approximation_of(made(method, **options)) is expected


@pytest.mark.parametrize("method", METHODS)
def test_on_one_rank_every_method_is_exact(method: str) -> None:
    """Nothing is read from elsewhere; gnnpipe's chunks are the parts, here one."""
    assert approximation_of(made(method, ALONE)) is EXACT


def test_chunks_read_older_rows_of_each_other_even_on_one_rank() -> None:
    assert approximation_of(made("gnnpipe", stages=1, ways=1)) is STALE
    assert approximation_of(made("gnnpipe", ALONE, stages=2)) is EXACT


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_exchanges_nothing_is_exact_unless_ranks_step_apart(method: str) -> None:
    """DIGEST's ranks do: it averages weights, not gradients."""
    schedule = made(method, spec=spec_for(GRAPH, layers=1, precompute=True))
    assert approximation_of(schedule) is (STALE if method in ("digest", "digest-a") else EXACT)


def test_sizes_from_a_card_say_the_same_as_a_partition() -> None:
    card = load_card("reddit")
    halo = from_card(card, 8, "metis")
    spec = replace(SPEC, num_features=card.features, num_classes=card.classes)
    assert {method: approximation_of(made(method, halo, spec)) for method in METHODS} == BY_DEFAULT
    assert approximation_of(made("psc", halo, spec, tau=0, eps=1.0)) is EXACT


@pytest.mark.parametrize("num_parts", [2, 3, 8])
def test_all_rows_are_all_rows_however_the_graph_is_cut(num_parts: int) -> None:
    halo = from_parts(build_parts(GRAPH, random_parts(GRAPH, num_parts)))
    assert approximation_of(made("bns", halo, rate=1.0)) is EXACT
    assert approximation_of(made("psc", halo, tau=0, eps=1.0)) is EXACT


@given(legal_schedules())
def test_without_lags_cadences_draws_and_a_store_a_schedule_is_exact(schedule: Schedule) -> None:
    plain = tuple(replace(o, after=tuple((name, 0) for name, _ in o.after), every=1, offset=0) for o in schedule.ops)
    if {o.kind for o in plain} & {Kind.SAMPLE, Kind.PUSH, Kind.PULL}:
        return
    assert approximation_of(replace(schedule, ops=plain)) is EXACT


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_received_rows_are_stale_from_a_lag_of_one_on(lag: int) -> None:
    schedule = two_rank_exchange(lag=lag)
    received = tuple(replace(b, rows=Rows.HALO) if b.name == "halo" else b for b in schedule.buffers)
    assert approximation_of(replace(schedule, buffers=received)) is (EXACT if lag == 0 else STALE)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_step_with_gradients_of_the_epoch_before_is_stale(lag: int) -> None:
    """One that no method here has: weights that are summed while the next epoch computes."""
    ops = list[Op]()
    for rank in (0, 1):
        reduce = AllReduce(num_bytes=8)
        ops += [
            op("backward", rank, writes=("grads",)),
            op("sum", rank, Lane.REDUCE, work=reduce, reads=("grads",), writes=("total",), after=(("backward", 0),)),
            op("step", rank, reads=("total",), writes=("weights",), after=(("sum", lag),)),
        ]
    buffers = tuple(
        Buffer(name=name, rank=rank, num_bytes=8, role=role)
        for rank in (0, 1)
        for name, role in (("grads", Role.WEIGHT_GRADS), ("total", Role.WEIGHT_GRADS), ("weights", Role.WEIGHTS))
    )
    schedule = Schedule(num_ranks=2, ops=tuple(ops), buffers=buffers)
    assert approximation_of(schedule) is (EXACT if lag == 0 else STALE)


def test_a_draw_that_does_not_show_what_it_keeps_is_sampled() -> None:
    draw = op("draw", work=Sample(kernels=(Kernel("draw", (7, 4)),)), writes=("x",))
    schedule = Schedule(num_ranks=1, ops=(draw,), buffers=(Buffer(name="x", rank=0, num_bytes=8),))
    assert approximation_of(schedule) is SAMPLED
