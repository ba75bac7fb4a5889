"""Predicted against published memory: `python benchmarks/memory.py [measured.csv]`.

Takes the rows `memory_gb` (one rank, or the mean over ranks) and `memory_gb_max` whose scenario can be built here.
Sizes come from cards, so which part a published rank held is unknown: the prediction is the mean over ranks, and the
range is printed beside it.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from halocast.base.errors import InputError
from halocast.sim.lower import lower
from halocast.sim.memory import device_memory
from halocast.study.codes import scenario_code
from halocast.study.published_figures import memory_figures
from halocast.study.published_rows import Row, Setting, own_figures, read_rows, setting_of
from halocast.study.workload import prepare

GIB = 2**30
NOTES = """
sylvie: torch's max_memory_allocated of rank 0, whose part is unknown: the range is what any part would need. Evaluation
  is on the CPU in the code it derives from, so it adds nothing. That code keeps the edges three times (COO, CSC and CSR
  with edge ids: 24 bytes an edge, ours 16) and one received copy of halo rows and gradients (ours two, as receives are
  posted ahead, and a packed copy to send).
mithril-log: taken as the whole device, of a C++ system without autograd or a caching allocator. Each of its GPUs holds
  tables of all nodes and the whole topology (study/published_rows.py says how that was found), so what a row
  should say is the memory of one way's stages, and more than what a method needs here.
"""


def published(paths: Iterable[Path]) -> Iterator[tuple[Row, Setting]]:
    """Rows of memory that our methods and models can express, without repetitions."""
    seen = set()
    for row in (row for path in paths for row in read_rows(path)):
        key = tuple(row[name] for name in row if name != "where")
        if not row["metric"].startswith("memory_gb") or key in seen:
            continue
        seen.add(key)
        try:
            yield row, setting_of(row)
        except InputError as error:
            print(f"{row['source']} {row['dataset']} {row['method']}: {error}")


def show(row: Row, setting: Setting) -> float:
    """Prints one row; returns the relative error."""
    workload = prepare(setting.scenario, setting.cluster.num_ranks)
    code = scenario_code(setting.scenario)
    schedule = lower(workload.schedule, code, workload.spec)
    memories = [device_memory(schedule, setting.cluster, rank, code) for rank in range(schedule.num_ranks)]
    allocated = [one.allocated_bytes / GIB for one in memories]
    said, value = memory_figures(workload, setting)[row["metric"]] / GIB, float(row["value"])
    fullest = max(memories, key=lambda one: one.total_bytes)
    largest = ", ".join(f"{name} {num_bytes / GIB:.2f}" for name, num_bytes in fullest.contributors[:6])
    name = f"{row['source']} {row['dataset']} {row['model']} {row['method']} {row['metric'].removeprefix('memory_gb')}"
    needed = f"{min(allocated):5.2f}-{max(allocated):5.2f}"
    print(f"{name:44} {needed} {said:9.2f} {value:9.2f} {said / value - 1:+7.0%}  {largest}")
    return said / value - 1


def main() -> None:
    if len(sys.argv) > 2:
        raise SystemExit("usage: python benchmarks/memory.py [measured.csv]")
    paths = [Path(sys.argv[1])] if len(sys.argv) == 2 else own_figures()
    print("GiB: what ranks need here, what the row should say, what it says; contributors of the fullest rank here")
    print(f"{'row':44} {'allocated':>11} {'predicted':>9} {'published':>9} {'error':>7}  largest")
    errors = [show(row, setting) for row, setting in published(paths)]
    if errors:
        print(f"{len(errors)} rows, mean absolute error {sum(map(abs, errors)) / len(errors):.0%}")
    print(NOTES)


if __name__ == "__main__":
    main()
