"""Measured seconds of ops in place of what their kernels cost: what is then predicted is the network alone."""

import pytest

from halocast.base.errors import InputError
from halocast.reports.metrics import measured_seconds
from halocast.schedule.trace import Trace
from halocast.study.predict import Prediction, predict, predict_on
from halocast.study.scenario import load_scenario


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    settings = ["cluster.name=cpu-2x1-200mbit", "graph.nodes=500", "method.name=bns"]
    return predict(load_scenario(None, settings))


def forward_s(trace: Trace, rank: int) -> list[float]:
    return [span.end_s - span.start_s for span in trace.spans if (span.rank, span.op) == (rank, "forward.1")]


def test_the_seconds_of_a_trace_make_the_same_trace_again(predicted: Prediction) -> None:
    seconds = measured_seconds(predicted.trace, 0)
    assert {name for _, name in seconds} >= {"sample_rows", "rebuild", "forward.0", "backward.2", "step"}
    assert not any(name.startswith(("exchange", "allreduce")) for _, name in seconds)
    again = predict_on(predicted.workload, predicted.cluster, measured_s=seconds)
    assert again.summary.epoch_s == pytest.approx(predicted.summary.epoch_s, rel=1e-9)
    assert again.summary.exposed_comm_s == pytest.approx(predicted.summary.exposed_comm_s, rel=1e-9)


def test_an_op_takes_the_seconds_that_are_given_and_the_others_their_own(predicted: Prediction) -> None:
    found = predict_on(predicted.workload, predicted.cluster, measured_s={(1, "forward.1"): 0.25})
    assert forward_s(found.trace, 1) == pytest.approx([0.25] * found.trace.num_epochs)
    assert forward_s(found.trace, 0) == pytest.approx(forward_s(predicted.trace, 0))


def test_medians_are_of_the_epochs_after_the_warm_up(predicted: Prediction) -> None:
    spans = predicted.trace.spans
    last = predicted.trace.num_epochs - 1
    (only,) = (s for s in spans if (s.rank, s.op, s.epoch) == (0, "loss", last))
    assert measured_seconds(predicted.trace, last)[0, "loss"] == pytest.approx(only.end_s - only.start_s)


def test_seconds_of_an_op_that_is_not_there_are_refused(predicted: Prediction) -> None:
    with pytest.raises(InputError, match=r"seconds of forward.9 on rank 0: the schedule has no such op"):
        predict_on(predicted.workload, predicted.cluster, measured_s={(0, "forward.9"): 1.0})
