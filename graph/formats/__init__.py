"""Graphs from files and datasets: `loaders` has the one way in."""
