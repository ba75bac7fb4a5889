"""Halocast: compare and plan distributed full-graph GNN training, one schedule simulated and executed.

    import halocast as hc

    scenario = hc.Scenario.load("demo", "graph.dataset=reddit", "cluster.gpus=4")
    hc.predict(scenario).summary.epoch_s                      # seconds
    hc.sweep(scenario, {"cluster.gpus": [2, 4, 8]}).frame()   # a pandas frame

`predict`, `sweep`, `plan`, `whatif`, `break_even` and `published` simulate; `run` and `converge` train; `compare`
and `validate` may do both (pip install 'halocast[run]'). Nothing is loaded before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocast.cluster.catalogue import load_cluster
    from halocast.graph.graph import Graph
    from halocast.study.calibrate import calibrate
    from halocast.study.choices import Aim, Goal
    from halocast.study.compare import compare
    from halocast.study.converge import converge
    from halocast.study.plan import plan
    from halocast.study.predict import predict
    from halocast.study.published import published
    from halocast.study.run import run
    from halocast.study.scenario import Scenario
    from halocast.study.sweep import sweep
    from halocast.study.validate import ValidationGrid, validate
    from halocast.study.whatif import break_even, whatif

    __version__: str

__all__ = [
    "Aim",
    "Goal",
    "Graph",
    "Scenario",
    "ValidationGrid",
    "__version__",
    "break_even",
    "calibrate",
    "compare",
    "converge",
    "load_cluster",
    "plan",
    "predict",
    "published",
    "run",
    "sweep",
    "validate",
    "whatif",
]
_HOMES = {
    "Aim": "halocast.study.choices",
    "Goal": "halocast.study.choices",
    "Graph": "halocast.graph.graph",
    "Scenario": "halocast.study.scenario",
    "ValidationGrid": "halocast.study.validate",
    "break_even": "halocast.study.whatif",
    "calibrate": "halocast.study.calibrate",
    "compare": "halocast.study.compare",
    "converge": "halocast.study.converge",
    "load_cluster": "halocast.cluster.catalogue",
    "plan": "halocast.study.plan",
    "predict": "halocast.study.predict",
    "published": "halocast.study.published",
    "run": "halocast.study.run",
    "sweep": "halocast.study.sweep",
    "validate": "halocast.study.validate",
    "whatif": "halocast.study.whatif",
}


if not TYPE_CHECKING:  # so that type checkers, which know the names above, find misspelt ones

    def __getattr__(name: str) -> Any:
        """Load what is asked for, once (PEP 562)."""
        if name == "__version__":
            from importlib.metadata import version  # as slow as all the rest of this import

            value = version("halocast")
        elif name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module 'halocast' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
