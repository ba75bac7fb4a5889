"""Graphs that come with the package: `loaders.load` finds them by name."""
