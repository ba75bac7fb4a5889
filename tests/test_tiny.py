"""Start here: the README's first example, and the whole product on a graph of 60 nodes."""

import re
from pathlib import Path

from training import metis_parts, small_graph, spec_for, train

from halocast.cluster.catalogue import load_cluster
from halocast.reports.metrics import measure
from halocast.schedule.text import format_op
from halocast.sim.engine import simulate

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    values: dict[str, object] = {}
    exec(code, values)
    assert values["prediction"].summary.ranks == 4  # type: ignore[attr-defined]


def test_one_schedule_two_interpreters(tmp_path: Path) -> None:
    graph = small_graph(nodes=60)
    executed = train(graph, metis_parts(graph, 2), spec_for(graph, layers=2), tmp_path)
    schedule = executed.schedule
    assert [op.name for op in schedule.by_rank[0]] == [
        "exchange.0",
        "forward.0",
        "exchange.1",
        "forward.1",
        "loss",
        "backward.1",
        "exchange_grad.1",
        "backward.0",
        "allreduce",
        "step",
    ]
    assert format_op(schedule.by_rank[1][7]).endswith("reads(gh.1,keep.0,gsent.1) writes(grads) after(exchange_grad.1)")
    simulated = simulate(schedule, load_cluster("cpu-local", gpus=2), 4)
    assert {(s.rank, s.op, s.epoch) for s in simulated.spans} == {
        (s.rank, s.op, s.epoch) for s in executed.run.trace.spans
    }
    for trace in (simulated, executed.run.trace):
        assert measure(trace, schedule, 1).epoch_s > 0
