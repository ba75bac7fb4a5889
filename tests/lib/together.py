"""Training in one process for tests: jobs of all methods at any number of ranks.

MEETING has every method and what the rules of the engine depend on, VARIANTS the other options and models; FREE is the
one whose ranks do not meet.
"""

from dataclasses import dataclass
from typing import Any

from training import schedule_for, small_graph, spec_for

from halocast.exec.launch.job import Job, Settings
from halocast.graph import Graph, Part, assign, build_parts
from halocast.graph.inclusion import CachePolicy
from halocast.graph.sampling import Draw, Weighting
from halocast.methods.bns import Mean, What
from halocast.methods.digest import Average
from halocast.methods.gnnpipe.options import Grouping, Split
from halocast.methods.gnnpipe.slots import Order
from halocast.methods.pipegcn import Lanes, Warmup
from halocast.methods.psc import Draws, Lengths, Wait
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
VARIANTS = [
    case("vanilla", {"kind": ModelKind.GCN, "norm": Norm.L2}),
    case("vanilla", {"kind": ModelKind.RESGCN}),
    case("vanilla", {"recompute": True}),
    case("pipegcn", lag=0),
    case("pipegcn", lag=3),
    case("pipegcn", warmup=Warmup.EXACT, lanes=Lanes.STREAM),
    case("pipegcn-gf", {"kind": ModelKind.GAT}, lanes=Lanes.LAYER),
    case("bns", rate=0.2, draw=Draw.FLOOR),
    case("bns", {"kind": ModelKind.GAT}, rate=0.5),
    case("bns", rate=0.3, what=What.EDGES),
    case("bns", rate=0.3, what=What.DROPEDGE, mean=Mean.RENORMALISED),
    case("psc", tau=0, eps=0.5),
    case("psc", draws=Draws.EACH, weighting=Weighting.INVERSE),
    case("psc", lengths=Lengths.ROWS, wait=Wait.BARRIER, refresh=2),
    case("psc", cache=0.3, policy=CachePolicy.DEGREE, refresh=0, least=2),
    case("psc", cache=0.3, policy=CachePolicy.RANDOM),
    case("digest", {"norm": Norm.L2}, interval=2),
    case("digest", {"kind": ModelKind.GAT}, interval=10),
    case("gnnpipe", {"kind": ModelKind.GCN}, split=Split.COST, shuffle=False),
    case("gnnpipe", {"kind": ModelKind.GAT}, freeze=1, cross_factor=1.0),
    case("gnnpipe", {"precompute": True}, grouping=Grouping.FAR, freeze=3),
    case("gnnpipe", {"kind": ModelKind.RESGCN}, late_gradients=True, shuffle=False),
    case("gnnpipe", {"kind": ModelKind.GCNII, "norm": Norm.NONE}, lockstep=True),
]
FREE = case("digest-a", interval=2)
