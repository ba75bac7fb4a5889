"""GNN specifications, their arithmetic, and the modules (torch only in modules.py, aggregate.py and attention.py)."""
