"""Every metric of a predicted row, as published timers and counters would show it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from types import MappingProxyType

from halocast.codes.implementation import Counts
from halocast.graph.halo import Halo
from halocast.reports.timers import BUBBLE, IMBALANCE, Timers, timers
from halocast.schedule.ir import SHARED, Kind
from halocast.sim.lower import lower
from halocast.sim.memory import device_memory
from halocast.study.codes import scenario_code
from halocast.study.descriptions import Descriptions, read_descriptions
from halocast.study.predict import Prediction, predict_on
from halocast.study.published_rows import Row, Setting, setting_of
from halocast.study.results import Tables
from halocast.study.workload import Workload, prepare

Figures = Mapping[str, float]  # metric -> value in SI units
FORWARD = "exchange."  # ops that send rows forward; those of gradients have another verb
HALO_WAITS, LAYER_WAITS = (Kind.EXCHANGE, Kind.PULL, Kind.PUSH), (Kind.RECV, Kind.SEND)


def predict_setting(setting: Setting) -> Figures:
    """Every metric of a setting: one prediction serves all rows of a run."""
    workload = prepare(setting.scenario, setting.cluster.num_ranks, card=setting.card)
    return figures_of(predict_on(workload, setting.cluster, lean=True), setting)


def tables_of_row(row: Row, own: Descriptions) -> Tables:
    """What a process of the pool needs to predict the setting of a row."""
    places = {"clusters": str(own.clusters_in or ""), "cards": str(own.cards_in or "")}
    return {"row": row, "code": own.code or "", **places}


def figures_of_tables(tables: Tables) -> Figures:
    own = read_descriptions(tables["clusters"] or None, tables["cards"] or None, tables["code"] or None)
    return predict_setting(setting_of(tables["row"], own))


def figures_of(prediction: Prediction, setting: Setting) -> Figures:
    """Every metric of a predicted scenario, as published timers and counters would show it."""
    return {
        **_times(prediction),
        **_traffic(prediction, setting),
        **memory_figures(prediction.workload, setting),
    }


def _times(prediction: Prediction) -> Figures:
    schedule, summary = prediction.workload.schedule, prediction.summary
    ranks = timers(prediction.trace, schedule, summary.warmup_epochs)
    computes = [rank.compute_s for rank in ranks]
    graph, layer = _waited(ranks, *HALO_WAITS), _waited(ranks, *LAYER_WAITS)
    reduce_s, epoch_s = _waited(ranks, Kind.ALLREDUCE), summary.epoch_s
    comms = [_waited([rank], *HALO_WAITS, *LAYER_WAITS) for rank in ranks]
    return {
        "epoch_s": epoch_s,
        "epoch_s_max": epoch_s,  # an epoch is that of the slowest rank
        "throughput": 1 / epoch_s,
        "compute_s": mean(computes),
        "compute_s_min": min(computes),
        "compute_s_max": max(computes),
        "graph_comm_s": graph,
        "layer_comm_s": layer,
        "comm_s": graph + layer,
        "comm_s_min": min(comms),
        "comm_s_max": max(comms),
        "comm_ratio": (graph + layer) / epoch_s,
        "reduce_s": reduce_s,
        "optim_s": reduce_s + _computed(ranks, "step"),
        "other_s": _computed(ranks, "loss", "refresh", "turn"),
        "sampling_ratio": _computed(ranks, "sample_rows", "sample_drop", "rebuild") / epoch_s,
        "bubble_s": _waited(ranks, BUBBLE),
        "imbalance_s": _waited(ranks, IMBALANCE),
    }


def _waited(ranks: Sequence[Timers], *kinds: str) -> float:
    return mean(sum(rank.waits.get(kind, 0.0) for kind in kinds) for rank in ranks)


def _computed(ranks: Sequence[Timers], *verbs: str) -> float:
    return mean(sum(rank.by_verb.get(verb, 0.0) for verb in verbs) for rank in ranks)


def _traffic(prediction: Prediction, setting: Setting) -> Figures:
    schedule = prediction.workload.schedule
    kinds = {op.name: op.kind for op in schedule.ops}
    by_kind: dict[Kind, float] = defaultdict(float)
    for op, num_bytes in prediction.summary.bytes_per_epoch_by_op.items():
        by_kind[kinds[op]] += num_bytes
    forward = sum(num for op, num in prediction.summary.bytes_per_epoch_by_op.items() if op.startswith(FORWARD))
    total, exchanges = sum(by_kind.values()), Kind.EXCHANGE in by_kind  # a pipeline of layers has none
    halo = prediction.workload.halo
    return {
        "bytes_total": total if setting.counts_all else forward,
        "bytes_graph": by_kind[Kind.EXCHANGE],
        "bytes_layer": by_kind[Kind.SEND] + by_kind[Kind.RECV],
        "bytes_weight_sync": by_kind[Kind.ALLREDUCE],
        "boundary_nodes": halo.volume if exchanges else 0,
        "boundary_nodes_max": max(PART_FIGURES["boundary_nodes"](halo)) if exchanges else 0,
        "edges_max": max(PART_FIGURES["edges"](halo)),
    }


def memory_figures(workload: Workload, setting: Setting) -> Figures:
    """Memory as the implementation's own figures count it, and whether it fits."""
    code, cluster = scenario_code(setting.scenario), setting.cluster
    schedule = lower(workload.schedule, code, workload.spec)
    ranks = [device_memory(schedule, cluster, rank, code) for rank in range(schedule.num_ranks)]
    whole = code.memory.counts is Counts.DEVICE
    held = [memory.total_bytes if whole else memory.allocated_bytes for memory in ranks]
    return {
        "memory_gb": mean(held),
        "memory_gb_max": max(held),
        "oom": 0.0 if all(memory.fits for memory in ranks) else 1.0,
        "memory_host_kvs": sum(buffer.num_bytes for buffer in schedule.buffers if buffer.rank == SHARED),
    }


PART_FIGURES: Mapping[str, Callable[[Halo], list[float]]] = MappingProxyType(
    {
        "inner_nodes": lambda halo: halo.num_inner.tolist(),
        "edges": lambda halo: halo.num_edges.tolist(),
        "boundary_nodes": lambda halo: halo.num_halo.tolist(),
        "boundary_inner_ratio": lambda halo: (halo.num_halo / halo.num_inner).tolist(),
    }
)
METRICS = frozenset(
    {"epoch_s", "epoch_s_max", "throughput", "compute_s", "compute_s_min", "compute_s_max", "graph_comm_s"}
    | {"layer_comm_s", "comm_s", "comm_s_min", "comm_s_max", "comm_ratio", "reduce_s", "optim_s", "other_s"}
    | {"sampling_ratio", "bubble_s", "imbalance_s", "bytes_total", "bytes_graph", "bytes_layer", "bytes_weight_sync"}
    | {"boundary_nodes", "boundary_nodes_max", "edges_max", "memory_gb", "memory_gb_max", "memory_host_kvs", "oom"}
)
