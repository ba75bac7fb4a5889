"""The flow model against end times of scenarios in a JSON file: `python -m halocast.sim.network.golden FILE`."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from halocast.sim.network.flows import Flows
from halocast.sim.network.links import after
from halocast.sim.network.transports import route_table

TOLERANCE = 1e-9


def worst_difference(scenario: dict[str, Any]) -> float:
    """The largest relative difference between the flow model's end times and a scenario's `end_s`."""
    number = {name: k for k, name in enumerate(scenario["links_bytes_per_s"])}
    env = simpy.Environment()
    flows = Flows(env, np.array(list(scenario["links_bytes_per_s"].values()), dtype=np.float64))
    ends = np.full(len(scenario["flows"]), np.nan)

    def start(k: int, flow: dict[str, Any]) -> None:
        routes = route_table([tuple(number[name] for name in flow["route"])])
        flows.start(routes, np.array([float(flow["bytes"])]), np.array([k]), lambda names: np.put(ends, names, env.now))

    for k, flow in enumerate(scenario["flows"]):
        after(env, flow["start_s"], lambda k=k, flow=flow: start(k, flow))  # type: ignore[misc]
    env.run()
    expected = np.array([flow["end_s"] for flow in scenario["flows"]])
    return (
        float(np.nanmax(np.abs(ends - expected) / np.abs(expected), initial=0.0))
        if not np.isnan(ends).any()
        else np.inf
    )


def main() -> int:
    if len(sys.argv) != 2:
        print(
            "usage: python -m halocast.sim.network.golden FILE (scenarios with links_bytes_per_s, flows and end_s)",
            file=sys.stderr,
        )
        return 2
    try:
        scenarios = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        differences = [(scenario["name"], worst_difference(scenario)) for scenario in scenarios]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {sys.argv[1]}: not a file of scenarios ({error})", file=sys.stderr)
        return 2
    for name, difference in differences:
        print(f"{name}: {difference:.2e}")
    worst = max((difference for _, difference in differences), default=0.0)
    print(f"worst of {len(differences)}: {worst:.2e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main())
