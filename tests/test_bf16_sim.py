"""Predictions with bfloat16 rows or tf32 products: bytes, memory, rates, and what a measured profile says of them."""

from pathlib import Path

import pytest
from profiles import profile_table, write

from halocast.base.errors import InputError
from halocast.base.kernels import Numbers
from halocast.cluster.catalogue import load_device
from halocast.schedule.ir import Kernel, Kind
from halocast.sim.cost import kernel_seconds
from halocast.study.predict import Prediction, predict
from halocast.study.scenario import Scenario

ON_A100 = ("graph.dataset=reddit", "graph.source=card", "cluster.name=a100-ib100", "cluster.gpus=4")


def predicted(*overrides: str) -> Prediction:
    return predict(Scenario.load(None, *ON_A100, *overrides), lean=True)


def moved(prediction: Prediction, kind: Kind) -> int:
    schedule = prediction.workload.schedule
    return sum(schedule.num_bytes(op) for op in schedule.ops if op.kind is kind)


@pytest.mark.parametrize("method", ["vanilla", "pipegcn-gf", "digest", "bns", "gnnpipe"])
def test_on_a100s_bfloat16_halves_the_rows_and_lengthens_no_epoch(method: str) -> None:
    wide = predicted(f"method.name={method}")
    narrow = predicted(f"method.name={method}", "run.dtype=bfloat16")
    rows = [kind for kind in (Kind.SEND, Kind.PUSH, Kind.PULL) if moved(wide, kind)]
    rows += [Kind.EXCHANGE] if method in ("vanilla", "pipegcn-gf") else []  # others send ids as well
    assert all(2 * moved(narrow, kind) == moved(wide, kind) for kind in rows)
    assert moved(narrow, Kind.ALLREDUCE) == moved(wide, Kind.ALLREDUCE)
    assert narrow.summary.epoch_s <= wide.summary.epoch_s
    assert narrow.summary.memory is not None
    assert wide.summary.memory is not None
    assert narrow.summary.memory.memory_bytes < wide.summary.memory.memory_bytes


def test_tf32_changes_products_and_nothing_else() -> None:
    wide, fast = predicted(), predicted("run.tf32=true")
    assert fast.summary.epoch_s <= wide.summary.epoch_s
    assert moved(fast, Kind.EXCHANGE) == moved(wide, Kind.EXCHANGE)
    assert fast.summary.memory == wide.summary.memory


def test_products_run_at_the_rate_of_their_numbers_and_other_kernels_save_bytes() -> None:
    a100 = load_device("a100-80")

    def seconds(kind: str, *dims: int) -> list[float]:
        wanted = (Numbers.FLOAT32, Numbers.TF32, Numbers.BFLOAT16)
        return [kernel_seconds(Kernel(kind, dims, numbers), a100) - a100.launch_s for numbers in wanted]

    product = seconds("gemm", 8192, 8192, 8192)  # bound by its FLOPs in all three
    assert [product[0] / one for one in product] == pytest.approx([1, 156 / 19.5, 312 / 19.5])  # 0.87 of each
    streamed = seconds("elementwise", 10**9, 2)
    assert [streamed[0] / one for one in streamed] == pytest.approx([1, 1, 2])
    t4 = load_device("t4")
    slow = [kernel_seconds(Kernel("gemm", (4096, 4096, 4096), n), t4) for n in (Numbers.FLOAT32, Numbers.BFLOAT16)]
    assert slow[0] == pytest.approx(slow[1])


def test_a_profile_says_that_bfloat16_was_not_measured_and_promises_nothing(tmp_path: Path) -> None:
    profile = write(tmp_path / "profile.toml", profile_table())
    local = ("cluster.name=cpu-local", "cluster.gpus=2", f"cluster.profile={profile}", "graph.nodes=2000")
    wide, narrow = (predict(Scenario.load("demo", *local, f"run.dtype={d}")) for d in ("float32", "bfloat16"))
    assert wide.summary.basis is not None
    assert narrow.summary.basis is not None
    said = "bfloat16: outside the measured range (profiles measure float32): kernels take as long as float32 ones"
    assert said in narrow.summary.basis.outside_range
    assert said not in wide.summary.basis.outside_range
    compute = [
        sum(s.end_s - s.start_s for s in one.trace.spans if s.op == "forward.1" and s.epoch == 0)
        for one in (wide, narrow)
    ]
    assert compute[0] == pytest.approx(compute[1])


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("run.dtype=float16", "dtype = 'float16': needs to be float32 or float64 or bfloat16"),
        ("run.dtype=tf32", "dtype = 'tf32': needs to be float32 or float64 or bfloat16"),
    ],
)
def test_other_numbers_are_refused_with_the_legal_ones(override: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        Scenario.load("demo", override)
    assert "\n" not in str(error.value)


def test_tf32_is_a_matter_of_float32_alone() -> None:
    with pytest.raises(InputError, match="tf32 = true: needs dtype = float32, not bfloat16"):
        Scenario.load("demo", "run.tf32=true", "run.dtype=bfloat16")
