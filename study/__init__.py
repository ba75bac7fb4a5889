"""Planning from Python, in notebooks for example:

    from halocast.study import Scenario

    from halocast.study import predict

    from halocast.study import sweep

    scenario = Scenario.load("demo", "graph.dataset=reddit", "cluster.gpus=4")
    predict(scenario).summary.epoch_s                              # seconds
    sweep(scenario, {"cluster.gpus": [2, 4, 8]}).frame()           # a pandas frame

`make_plan` ranks what a scenario's [plan] allows, `what_if` and `break_even` say what would help and where one method
overtakes another. Results are frozen; importing this imports neither torch nor pandas.
"""

from halocast.study.planning import make_plan
from halocast.study.predict import Prediction, predict
from halocast.study.scenario import Scenario
from halocast.study.search import Aim, Goal, Plan
from halocast.study.sweep import Sweep, sweep
from halocast.study.whatif import BreakEven, WhatIf, break_even, what_if

__all__ = [
    "Aim",
    "BreakEven",
    "Goal",
    "Plan",
    "Prediction",
    "Scenario",
    "Sweep",
    "WhatIf",
    "break_even",
    "make_plan",
    "predict",
    "sweep",
    "what_if",
]
