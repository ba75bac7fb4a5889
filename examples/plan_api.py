"""Planning from Python, cell by cell as in a notebook: predict, sweep, plan, what if."""

# %% One scenario: Reddit, 2-layer GraphSAGE, 4 of 8 hosts with an L4 each
import halocast as hc

settings = ("graph.dataset=reddit", "model.layers=2", "model.hidden=32", "cluster.name=l4-8x1-25gbe", "cluster.gpus=4")
scenario = hc.Scenario.load("demo", *settings)
prediction = hc.predict(scenario)
print(prediction)

# %% All combinations of some keys, as a pandas frame; `results="sweep.sqlite"` would keep them
found = hc.sweep(scenario, {"cluster.network_gbps": [10, 25, 100], "method.name": ["vanilla", "pipegcn"]})
frame = found.frame()
print(frame.pivot(index="cluster.network_gbps", columns="method.name", values="epoch_s").round(3))

# %% The best of what a plan allows: methods that compute what one device computes, and those that approximate it
space = ('plan.methods=["vanilla", "pipegcn", "bns"]', "plan.gpus=[2, 4, 8]")
plan = hc.plan(hc.Scenario.load("demo", *settings, *space))
for best in (plan.best_exact, plan.best_approximate):
    print(f"best: {best.candidate.label}, {best.epoch_s * 1e3:.0f} ms, {best.price:.2g} USD an epoch")

# %% What to buy, and when a pipeline pays
gains = hc.whatif(scenario)
print(f"bottleneck: {gains.bottleneck.resource}, {gains.bottleneck.speedup:.2f}x if doubled")
methods = ({"name": "vanilla"}, {"name": "bns", "rate": 0.1})
even = hc.break_even(scenario, methods, "cluster.network_gbps", (1.0, 400.0))
print(f"break-even of vanilla and bns: {even.crossings or 'none'} Gb/s")
