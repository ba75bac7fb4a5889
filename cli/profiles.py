"""The profile that this machine is predicted with: one that a command is given, or the one that calibrate left here."""

import socket
from pathlib import Path

from halocast.calibrate.profile import load_profile
from halocast.cli.output import note

USUAL = Path("profile.toml")


def machine_profile(given: Path | None) -> Path | None:
    if given is not None or not USUAL.exists():
        return given
    found = load_profile(USUAL)
    host = found.table.made.host
    if host != socket.gethostname():
        note(f"{USUAL}: measured on {host}, not here, so it is not used (--profile {USUAL} uses it)")
        return None
    note(f"profile: {found.source}; --profile takes another")
    return USUAL
