"""GNN specifications, their arithmetic, and (in modules.py and aggregate.py, the only torch here) the modules."""
