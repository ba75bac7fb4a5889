"""What a comparison or a plan may ask of trainings in virtual time: a target, seeds, and a graph that stands in."""

from collections.abc import Callable
from dataclasses import dataclass

from halocast.base.records import require
from halocast.study.targets import parse_target

TARGET, SEEDS = "95%", 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The question that methods are trained for; as `converge` has it."""

    target: str | float = TARGET  # a validation score, or a share of exact training's best
    seeds: int = SEEDS
    stand_in: str | None = None  # a graph with data that is trained in place of the scenario's
    jobs: int | None = None  # trainings side by side; one per core
    progress: Callable[[str, int, int], None] = lambda what, done, of: None

    def __post_init__(self) -> None:
        parse_target(self.target)
        require(self.seeds >= 1, f"seeds = {self.seeds}: needs to be at least 1")

    @property
    def words(self) -> list[str]:
        """The options of a command that ask the same."""
        said = ["--target", str(self.target)] if str(self.target) != TARGET else []
        said += ["--seeds", str(self.seeds)] if self.seeds != SEEDS else []
        return said + (["--stand-in", self.stand_in] if self.stand_in else [])
