"""The command line; the only place that prints and picks exit codes."""

import signal
import sys
from collections.abc import Sequence

from halocast.base.errors import InputError, MachineError, RunError

USAGE, FAILED, INTERRUPTED = 2, 1, 130


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    raise SystemExit(run(sys.argv[1:] or ["--help"]))


def run(args: Sequence[str]) -> int:
    """Run a command line; a user's mistake is one line on stderr, a bug of ours keeps its traceback."""
    try:
        from halocast.cli.app import app  # here, so that an interrupt of slow imports is an interrupt like any other

        result = app(list(args), standalone_mode=False, prog_name="halocast")
    except MachineError as error:
        return _fail(str(error), FAILED)
    except InputError as error:
        return _fail(str(error), USAGE)
    except RunError as error:
        return _fail(str(error), FAILED)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has gone; nothing is left to say
        return FAILED
    except MemoryError as error:
        return _fail(f"not enough memory: {error}", FAILED)
    except OSError as error:
        return _fail(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own: a misspelt option, a missing argument
            raise
        return _fail(f"{error.format_message()} (see halocast --help)", USAGE)
    if result == INTERRUPTED:  # typer caught the interrupt
        return _fail("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
