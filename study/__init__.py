"""Everything a user can ask, as functions with frozen results; `import halocast` gives the ones to begin with.

Progress is told to callbacks (`say`, `progress`, `on_epoch`): nothing here prints. Results show themselves in a line
(`repr`) or a small table (in a notebook), and `.frame()` gives all of their rows to pandas.
"""
