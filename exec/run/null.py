"""The null executor: the same interpreter on every rank, as threads of one process, with messages but no work.

It runs any legal schedule without torch or hardware; a deadlock shows as a RunError that names who waits for whom.
"""

import threading
from collections import defaultdict

from halocast.base.errors import RunError
from halocast.exec.run.interpret import Interpreter
from halocast.schedule.ir import MATCHED, Kind, Op, Schedule
from halocast.schedule.trace import Trace


class _Post:
    """Remembers which ranks have started which communication; an op may end when all its partners have started."""

    def __init__(self, schedule: Schedule, timeout_s: float) -> None:
        self._schedule = schedule
        self._timeout_s = timeout_s
        self._started: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._pushed: dict[tuple[int, str], int] = defaultdict(lambda: -1)
        self._changed = threading.Condition()
        self._failed = False

    def handle(self, op: Op, epoch: int) -> int:
        if op.kind in MATCHED:
            self._meet(op, epoch)
        if op.kind is Kind.PUSH:
            with self._changed:
                self._pushed[op.rank, op.name] = epoch
                self._changed.notify_all()
        return self._schedule.num_bytes(op)

    def wait_for_pushes(self, op: Op, epoch: int, waits: list[tuple[Op, int]]) -> None:
        """Wait until other ranks have pushed what a bounded PULL may not run ahead of."""

        def there() -> bool:
            return all(self._pushed[push.rank, push.name] >= instance for push, instance in waits)

        with self._changed:
            self._changed.wait_for(lambda: self._failed or there(), self._timeout_s)
            if not there():
                late = [push.label for push, instance in waits if self._pushed[push.rank, push.name] < instance]
                raise RunError(f"rank {op.rank}, epoch {epoch}: {op.name} waited for {', '.join(late)}")

    def _meet(self, op: Op, epoch: int) -> None:
        needed = set(self._schedule.partners(op))
        with self._changed:
            here = self._started[op.name, epoch]
            here.add(op.rank)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failed or needed <= here, self._timeout_s)
        if not needed <= here:
            missing = sorted(needed - here)
            raise RunError(f"rank {op.rank}, epoch {epoch}: {op.name} waited for ranks {missing}")

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


def execute_null(schedule: Schedule, num_epochs: int, timeout_s: float = 20.0) -> Trace:
    """Interpret every rank's ops for real, but do nothing in them; the spans say in which order things happened."""
    post = _Post(schedule, timeout_s)
    done = [0] * schedule.num_ranks
    ranks = [
        Interpreter(
            schedule=schedule, rank=rank, handle=post.handle, timeout_s=timeout_s, elsewhere=post.wait_for_pushes
        )
        for rank in range(schedule.num_ranks)
    ]
    errors: list[BaseException] = []

    def run(interpreter: Interpreter) -> None:
        def finished(epoch: int) -> None:
            done[interpreter.rank] = epoch + 1

        def slowest() -> int:
            return min(done[: interpreter.rank] + done[interpreter.rank + 1 :])

        try:
            interpreter.run(interpreter.ending(num_epochs, slowest=slowest, finished=finished))
        except BaseException as error:
            errors.append(error)
            post.fail()

    threads = [threading.Thread(target=run, args=(interpreter,), daemon=True) for interpreter in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    spans = (span for interpreter in ranks for span in interpreter.spans)
    return Trace.of(spans, source="null", num_ranks=schedule.num_ranks, num_epochs=num_epochs)
