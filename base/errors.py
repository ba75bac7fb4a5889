"""The errors a user can meet, and the one way to say that a word is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Input of the user that is wrong; the message names the value, the legal ones and the place."""


class MachineError(InputError):
    """A described machine that cannot work: no way between two devices, a link without bandwidth."""


class RunError(RuntimeError):
    """Work on legal input that could not be finished (a rank died, a wait timed out)."""


def unknown(what: str, value: str, legal: Iterable[str], where: str = "") -> InputError:
    """The error for a word outside a closed set, with the nearest legal word as a suggestion."""
    words = sorted(legal)
    near = get_close_matches(value, words, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    place = f"{where}: " if where else ""
    return InputError(f"{place}unknown {what} {value!r}{hint} (known: {', '.join(words) or 'none'})")
