"""Whether torchrun has started this process, and as which of how many; without torch, which takes seconds to load."""

import os


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    return not under_torchrun() or os.environ["RANK"] == "0"


def on_several_hosts() -> bool:
    return under_torchrun() and int(os.environ["LOCAL_WORLD_SIZE"]) < num_started()


def num_started() -> int:
    return int(os.environ["WORLD_SIZE"])


def num_here() -> int:
    """Ranks that torchrun has started on this host."""
    return int(os.environ["LOCAL_WORLD_SIZE"])
