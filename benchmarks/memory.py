"""Predicted against published memory: `python benchmarks/memory.py [measured.csv]`.

Takes the rows `memory_gb` (one rank, or the mean over ranks) and `memory_gb_max` whose scenario can be built here.
Sizes come from cards, so which part a published rank held is unknown: the prediction is the mean over ranks, and the
range is printed beside it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from halocast.base.errors import InputError
from halocast.plan.rows import Row, Setting, own_figures, read_rows, setting_of
from halocast.plan.workload import prepare
from halocast.sim.memory import DeviceMemory, device_memory

GIB = 2**30
NOTES = """
sylvie: torch's max_memory_allocated of rank 0, whose part is unknown: the range is what any part would need. Evaluation
  is on the CPU in the code it derives from, so it adds nothing. That code keeps the edges three times (COO, CSC and CSR
  with edge ids: 24 bytes an edge, ours 16) and one received copy of halo rows and gradients (ours two, as receives are
  posted ahead, and a packed copy to send).
mithril-log: taken as the whole device, of a C++ system without autograd or a caching allocator. Its largest rank holds
  only 4-6 % more than the mean although halos differ manifold, and both graphs agree with 5 tensors of ALL nodes x
  hidden per layer (32 x 5 x 400 bytes a node: 5.3 and 13.9 GiB) and 0.7 GiB besides: its tensors do not shrink with the
  part. Its first layer multiplies before it aggregates, so features do not travel (ours do). A method needs what is
  predicted here; that this system held more is left as it is.
"""


def published(path: Path) -> Iterator[tuple[Row, Setting]]:
    """Rows of memory that our methods and models can express, without repetitions."""
    seen = set()
    for row in read_rows(path):
        key = tuple(row[name] for name in row if name != "where")
        if not row["metric"].startswith("memory_gb") or key in seen:
            continue
        seen.add(key)
        try:
            yield row, setting_of(row)
        except InputError as error:
            print(f"{row['source']} {row['dataset']} {row['method']}: {error}")


def predicted(setting: Setting) -> list[DeviceMemory]:
    schedule = prepare(setting.scenario, setting.cluster.num_ranks).schedule
    return [device_memory(schedule, setting.cluster, rank) for rank in range(schedule.num_ranks)]


def show(row: Row, setting: Setting) -> float:
    """Prints one row; returns the relative error."""
    memories = predicted(setting)
    allocated = [one.allocated_bytes / GIB for one in memories]
    total = [one.total_bytes / GIB for one in memories]
    ours, value = total if setting.counts_all_memory else allocated, float(row["value"])
    said = max(ours) if row["metric"].endswith("_max") else sum(ours) / len(ours)
    fullest = max(memories, key=lambda one: one.total_bytes)
    largest = ", ".join(f"{name} {num_bytes / GIB:.2f}" for name, num_bytes in fullest.contributors[:6])
    name = f"{row['source']} {row['dataset']} {row['model']} {row['method']} {row['metric'].removeprefix('memory_gb')}"
    print(
        f"{name:44} {sum(allocated) / len(ours):9.2f} {sum(total) / len(ours):9.2f} {min(ours):5.2f}-{max(ours):5.2f} "
        f"{value:9.2f} {said / value - 1:+7.0%}  {largest}"
    )
    return said / value - 1


def main() -> None:
    if len(sys.argv) > 2:
        raise SystemExit("usage: python benchmarks/memory.py [measured.csv]")
    path = Path(sys.argv[1]) if len(sys.argv) == 2 else own_figures()
    print("GiB; means over ranks, the range, the error of what the row measures; contributors of the fullest rank")
    print(f"{'row':44} {'allocated':>9} {'on device':>9} {'range':>11} {'published':>9} {'error':>7}  largest")
    errors = [show(row, setting) for row, setting in published(path)]
    if errors:
        print(f"{len(errors)} rows, mean absolute error {sum(map(abs, errors)) / len(errors):.0%}")
    print(NOTES)


if __name__ == "__main__":
    main()
