"""The [world] section of a scenario: what is worse than its cluster's description."""

from dataclasses import dataclass, field

from halocast.base.delays import Delay
from halocast.base.records import require
from halocast.sim.world import Failure, World


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSection:
    """What is worse than the cluster's description; by rank, or by the name of a link or of a node it touches."""

    speed: dict[str, float] = field(default_factory=dict)  # {3 = 0.5}: rank 3's device has half its speed
    delay_s: dict[str, tuple[float, ...]] = field(default_factory=dict)  # {0 = [8, 10]}: every epoch, drawn; [2]: fixed
    links: dict[str, float] = field(default_factory=dict)  # {"host 1" = 0.5}: half the capacity
    fail_host: int | None = None
    fail_at_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        both = (self.fail_host is None) == (self.fail_at_s is None)
        require(both, "fail_host and fail_at_s go together")
        require(self.fail_at_s is None or self.fail_at_s >= 0, f"fail_at_s = {self.fail_at_s}: needs to be at least 0")
        for key in (*self.speed, *self.delay_s):
            require(key.isdecimal(), f"{key!r}: a rank is a whole number")
        for key, bounds in self.delay_s.items():
            legal = len(bounds) in (1, 2)
            require(legal, f"delay_s of rank {key} = {list(bounds)}: needs [seconds] or [low, high]")

    @property
    def world(self) -> World:
        return World(
            speed={int(rank): factor for rank, factor in self.speed.items()},
            delays=tuple(Delay(rank=int(rank), low_s=s[0], high_s=s[-1]) for rank, s in self.delay_s.items()),
            links=self.links,
            failure=Failure(host=self.fail_host, at_s=self.fail_at_s)
            if self.fail_host is not None and self.fail_at_s is not None
            else None,
            seed=self.seed,
        )
