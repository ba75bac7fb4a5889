"""Chakra traces, read back by the official protobuf runtime from a description of the format written here."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import result
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32
from hypothesis import given
from hypothesis import strategies as st

from halocast.methods import METHODS
from halocast.reports.comparison import MethodResult
from halocast.reports.formats.chakra import MOST_NODES, varint, write_chakra
from halocast.schedule.ir import Kind, Payload
from halocast.study.compare import kernel_work
from halocast.study.predict import predict
from halocast.study.scenario import load_scenario

Field = descriptor_pb2.FieldDescriptorProto
TYPES = {
    "double": Field.TYPE_DOUBLE,
    "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
    "uint64": Field.TYPE_UINT64,
    "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING,
}
ARMS = {"double_val": 3, "int32_val": 7, "int64_val": 9, "uint64_val": 13, "bool_val": 27, "string_val": 29}
ARM_OF = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
    "start_s": "double_val",
    "end_s": "double_val",
    "epoch": "int64_val",
}
LOAD, STORE, COMP, SEND, RECV, COLL = 2, 3, 4, 5, 6, 7


def add(message: Any, name: str, number: int, kind: str, *, repeated: bool = False, oneof: bool = False) -> None:
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind in TYPES:
        field.type = TYPES[kind]
    else:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".t.{kind}"
    if oneof:
        field.oneof_index = 0


def message_types() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="t", syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    for name, number in ARMS.items():
        add(attribute, name, number, name.removesuffix("_val"), oneof=True)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, "string")
    add(metadata, "attr", 2, "AttributeProto", repeated=True)
    node = file.message_type.add(name="Node")
    for name, number, kind, repeated in (
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False),
        ("attr", 10, "AttributeProto", True),
    ):
        add(node, name, number, kind, repeated=repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in ("GlobalMetadata", "Node")
    }


def raw_messages(path: Path) -> Iterator[bytes]:
    data, place = path.read_bytes(), 0
    while place < len(data):
        length, place = _DecodeVarint32(data, place)
        yield data[place : place + length]
        place += length
    assert place == len(data)


def read(path: Path) -> tuple[Any, list[Any]]:
    types = message_types()
    first, *rest = raw_messages(path)
    metadata, nodes = types["GlobalMetadata"].FromString(first), [types["Node"].FromString(raw) for raw in rest]
    # what the official runtime writes again is what was there: no unknown fields, no other encoding
    assert metadata.SerializeToString(deterministic=True) == first
    assert [node.SerializeToString(deterministic=True) for node in nodes] == rest
    return metadata, nodes


def told(node: Any) -> dict[str, Any]:
    """Attributes by name; each from the arm a reader looks at."""
    found = {}
    for attribute in node.attr:
        assert attribute.WhichOneof("value") == ARM_OF[attribute.name], attribute.name
        found[attribute.name] = getattr(attribute, ARM_OF[attribute.name])
    return found


def predicted(method: str, *more: str) -> MethodResult:
    sets = ["graph.nodes=600", "graph.degree=8", "cluster.gpus=4", f"method.name={method}", *more]
    found = predict(load_scenario("demo", sets))
    return MethodResult(summary=found.summary, trace=found.trace, schedule=found.workload.schedule)


def exported(made: MethodResult, directory: Path) -> list[list[Any]]:
    assert write_chakra(made, directory / "c", kernel_work) == ""
    ranks = range(made.schedule.num_ranks)
    return [read(directory / "c" / f"{made.method}.{rank}.et")[1] for rank in ranks]


@given(st.integers(0, 2**64 - 1))
def test_varints_are_those_of_the_official_runtime(value: int) -> None:
    from google.protobuf.internal.encoder import _VarintBytes

    assert varint(value) == _VarintBytes(value)


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_is_a_trace_whose_messages_meet(method: str, tmp_path: Path) -> None:
    made = predicted(method, *(["method.lockstep=true"] if method == "gnnpipe" else []))
    sent: Counter[tuple[int, ...]] = Counter()
    received: Counter[tuple[int, ...]] = Counter()
    for rank, nodes in enumerate(exported(made, tmp_path)):
        assert [node.id for node in nodes] == list(range(len(nodes)))
        for node in nodes:
            attributes = told(node)
            assert attributes["is_cpu_op"] is False
            assert all(0 <= dep < len(nodes) for dep in node.data_deps)
            assert not node.ctrl_deps
            if node.type in (SEND, RECV):
                message = tuple(attributes[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                (sent if node.type == SEND else received)[message] += 1
                assert rank == attributes["comm_src" if node.type == SEND else "comm_dst"]
            assert ("num_ops" in attributes) == (node.type == COMP)
            assert ("pg_name" in attributes) == (node.type == COLL)
    assert sent == received
    assert max(sent.values(), default=1) == 1  # a tag names one message of a pair
    groups = json.loads((tmp_path / "c" / "comm_groups.json").read_text())
    assert all(ranks == sorted(ranks) for ranks in groups.values())


def test_a_lane_is_a_chain_of_data_dependencies_and_an_op_waits_for_what_it_is_after(tmp_path: Path) -> None:
    made = predicted("pipegcn")
    for rank, nodes in enumerate(exported(made, tmp_path)):
        instances: dict[tuple[str, int], set[int]] = {}
        for node in nodes:
            if not node.name.endswith(".pack"):
                instances.setdefault((node.name, told(node)["epoch"]), set()).add(node.id)
        reach = reachable(nodes)
        for lane in made.schedule.lanes(rank).values():
            order = [(op.name, epoch) for epoch in range(made.trace.num_epochs) for op in lane]
            written = [one for one in order if one in instances]
            for before, now in pairwise(written):
                assert all(instances[before] <= reach[node] for node in instances[now])
            for op in lane:
                for name, lag in op.after:
                    for epoch in range(made.summary.warmup_epochs + lag, made.trace.num_epochs):
                        mine, awaited = instances.get((op.name, epoch)), instances.get((name, epoch - lag))
                        if mine and awaited:
                            assert all(awaited <= reach[node] for node in mine)


def reachable(nodes: list[Any]) -> list[set[int]]:
    """All that a node depends on, directly or not; fails if that is circular."""
    reach: dict[int, set[int]] = {}
    waiting = list(nodes)
    while waiting:
        ready = [node for node in waiting if all(dep in reach for dep in node.data_deps)]
        assert ready, "dependencies form a circle"
        for node in ready:
            reach[node.id] = set(node.data_deps).union(*(reach[dep] for dep in node.data_deps))
        waiting = [node for node in waiting if node.id not in reach]
    return [reach[k] for k in range(len(nodes))]


def test_an_exchange_moves_the_rows_of_its_matrix(tmp_path: Path) -> None:
    made = predicted("vanilla")
    files = exported(made, tmp_path)
    last = made.trace.num_epochs - 1
    for op in [op for op in made.schedule.by_rank[0] if op.kind is Kind.EXCHANGE]:
        moved = np.zeros((4, 4), dtype=np.int64)
        for nodes in files:
            for node in nodes:
                if node.name == op.name and node.type == SEND and told(node)["epoch"] == last:
                    moved[told(node)["comm_src"], told(node)["comm_dst"]] += told(node)["comm_size"]
        mine = [made.schedule.find(rank, op.name) for rank in range(4)]
        assert (moved == np.array([made.schedule.sent(one) for one in mine if one is not None])).all()


def test_exact_seconds_and_work_stand_beside_whole_microseconds(tmp_path: Path) -> None:
    made = predicted("vanilla")
    spans = {(s.rank, s.op, s.epoch): s for s in made.trace.spans}
    for rank, nodes in enumerate(exported(made, tmp_path)):
        for node in nodes:
            attributes = told(node)
            span = spans[rank, node.name.removesuffix(".pack"), attributes["epoch"]]
            assert (attributes["start_s"], attributes["end_s"]) == (span.start_s, span.end_s)
            assert abs(node.duration_micros - (span.end_s - span.start_s) * 1e6) <= 0.5
    step = next(node for node in nodes if node.name == "forward.1")
    op = made.schedule.find(3, "forward.1")
    assert op is not None
    work = [kernel_work(kernel) for kernel in op.work.kernels]
    assert (told(step)["num_ops"], told(step)["tensor_size"]) == tuple(map(sum, zip(*work, strict=True)))


def test_a_stores_traffic_is_loads_and_stores(tmp_path: Path) -> None:
    made = predicted("digest", "method.interval=1")
    nodes = exported(made, tmp_path)[0]
    for kind, verb in ((LOAD, "pull"), (STORE, "push")):
        found = [node for node in nodes if node.type == kind]
        assert {node.name.partition(".")[0] for node in found} == {verb}
        op = made.schedule.find(0, found[0].name)
        assert op is not None
        assert isinstance(op.work, Payload)
        assert told(found[0])["tensor_size"] == op.work.num_bytes


def test_the_head_says_what_was_written(tmp_path: Path) -> None:
    made = result(method="m")
    assert write_chakra(made, tmp_path / "c") == ""
    metadata, _ = read(tmp_path / "c" / "m.1.et")
    assert metadata.version == "0.0.4"
    found = {a.name: getattr(a, a.WhichOneof("value")) for a in metadata.attr}
    assert found == {
        "method": "m",
        "source": "simulated",
        "cluster": "c",
        "rank": 1,
        "first_epoch": 1,
        "num_epochs": 2,
    }


def test_a_trace_that_would_be_too_large_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = predicted("vanilla")
    monkeypatch.setattr("halocast.reports.formats.chakra.MOST_NODES", 20)
    assert "more than 20" in write_chakra(made, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert MOST_NODES > 20
