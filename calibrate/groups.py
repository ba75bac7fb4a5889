"""Names of groups of measured points that both who measures and who fits has to know."""

EMULATED = "emulated "  # before a group's name: measured between hosts that are namespaces of one machine
CPU = "cpu"  # the device whose ranks compute and communicate on the same cores
