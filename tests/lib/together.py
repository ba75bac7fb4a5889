"""Training in one process for tests: jobs of all methods at any number of ranks."""

from dataclasses import dataclass
from typing import Any

from training import schedule_for, small_graph, spec_for

from halocast.exec.launch.job import Job, Settings
from halocast.graph import Graph, Part, assign, build_parts
from halocast.graph.sampling import Draw
from halocast.methods.bns import Mean
from halocast.methods.digest import Average
from halocast.methods.gnnpipe.slots import Order
from halocast.methods.pipegcn import Lanes
from halocast.models.spec import ModelKind, Norm

GRAPH = small_graph(nodes=240)
EPOCHS = 5
STAGES = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2)}  # by ranks: stages and ways
ALONE = ("late_gradients", "order")  # options under which a stage has one way


@dataclass(frozen=True)
class Case:
    """A method with options and a model, at any number of ranks."""

    method: str
    options: dict[str, Any]
    model: dict[str, Any]

    def __str__(self) -> str:
        said = {**self.options, **self.model}
        return "-".join([self.method, *(f"{key}={value}" for key, value in said.items())])

    def job(self, num_ranks: int, *, graph: Graph = GRAPH, **settings: Any) -> tuple[Job, tuple[Part, ...]]:
        parts, options = self._parts(graph, num_ranks), dict(self.options)
        layers = 4
        if self.method == "gnnpipe":
            alone = any(name in options for name in ALONE)
            options["stages"], options["ways"] = (num_ranks, 1) if alone else STAGES[num_ranks]
            layers = max(layers, options["stages"])
        spec = spec_for(graph, **{"dropout": 0.3, "layers": layers, "hidden": 8, **self.model})
        chosen = {"epochs": EPOCHS, "dtype": "float64", "audit": True, "seed": 5, "eval_every": 2, **settings}
        schedule = schedule_for(parts, spec, str(chosen["dtype"]), self.method, **options)
        return Job(schedule=schedule, spec=spec, settings=Settings(**chosen)), parts

    def _parts(self, graph: Graph, num_ranks: int) -> tuple[Part, ...]:
        if self.method == "gnnpipe":
            return build_parts(graph, assign(graph, 8, balance="cost", seed=1, cache=False))
        return build_parts(graph, assign(graph, num_ranks, partitioner="metis", seed=1))


def case(method: str, model: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(method, options, model or {})


MEETING = [
    case("vanilla"),
    case("vanilla", {"kind": ModelKind.GAT}),
    case("vanilla", {"kind": ModelKind.GCNII, "norm": Norm.NONE}),
    case("pipegcn", {"precompute": True}),
    case("pipegcn", lanes=Lanes.LAYER),
    case("pipegcn-f"),
    case("pipegcn-g"),
    case("pipegcn-gf", gamma=0.5),
    case("bns", rate=0.3),
    case("bns", rate=0.02, draw=Draw.BERNOULLI, mean=Mean.RENORMALISED),
    case("psc", {"kind": ModelKind.GCN}),
    case("psc", tau=2, eps=0.3, refresh=1, cache=0.2),
    case("digest", interval=1),
    case("digest", interval=3, average=Average.PLAIN),
    case("gnnpipe"),
    case("gnnpipe", {"kind": ModelKind.GCNII, "norm": Norm.NONE}, freeze=2),
    case("gnnpipe", order=Order.ONE),
    case("gnnpipe", late_gradients=True, lockstep=True),
]
FREE = case("digest-a", interval=2)
