"""Planning from Python, cell by cell as in a notebook: predict, sweep, plan, what if."""

# %% One scenario: Reddit, 2-layer GraphSAGE, 4 of 8 hosts with an L4 each
from dataclasses import replace

from halocast.study import Scenario, break_even, make_plan, predict, sweep, what_if
from halocast.study.scenario import PlanSection

settings = ("graph.dataset=reddit", "model.layers=2", "model.hidden=32", "cluster.name=l4-8x1-25gbe", "cluster.gpus=4")
scenario = Scenario.load("demo", *settings)
prediction = predict(scenario)
print(f"vanilla: {prediction.summary.epoch_s * 1e3:.0f} ms an epoch, fits: {prediction.summary.fits}")

# %% All combinations of some keys, as a pandas frame; `results="sweep.sqlite"` would keep them
found = sweep(scenario, {"cluster.network_gbps": [10, 25, 100], "method.name": ["vanilla", "pipegcn"]})
frame = found.frame()
print(frame.pivot(index="cluster.network_gbps", columns="method.name", values="epoch_s").round(3))

# %% The best of what a plan allows
space = PlanSection(methods=("vanilla", "pipegcn", "bns"), gpus=(2, 4, 8))
plan = make_plan(replace(scenario, plan=space))
print(f"best: {plan.best.candidate.label}, {plan.best.epoch_s * 1e3:.0f} ms, {plan.best.price:.2g} USD an epoch")

# %% What to buy, and when a pipeline pays
gains = what_if(scenario)
print(f"bottleneck: {gains.bottleneck.resource}, {gains.bottleneck.speedup:.2f}x if doubled")
methods = ({"name": "vanilla"}, {"name": "bns", "rate": 0.1})
even = break_even(scenario, methods, "cluster.network_gbps", (1.0, 400.0))
print(f"break-even of vanilla and bns: {even.crossings or 'none'} Gb/s")
