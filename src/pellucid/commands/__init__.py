"""The command line: `main()`. Help and errors speak the chosen language, and torch is imported only by a command that runs.

Every wrong use and every PellucidError is one line on stderr and exit code 2; 1 says that a check failed, 75 that a signal stopped
a run of training with everything saved, 130 that Ctrl-C ended the command.
"""

import gc
import os
import sys
from collections.abc import Sequence

from pellucid import messages
from pellucid.commands import app
from pellucid.commands.screen import MutedScreen, Screen, common_options
from pellucid.errors import PellucidError, UseError
from pellucid.launched import number, started

SEVERAL = ("run", "score", "trace", "train")
"""Commands that several processes may run together."""
SPINS = "2000"
"""How often a thread that waits for another looks before it sleeps, by OpenMP's own variable; GCC's own number is 300,000."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, the process's own if `argv` is None; return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    screen = Screen()
    if argv is None:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is imported; on a busy machine the other has no core meanwhile
        gc.set_threshold(10_000)  # not 700: importing torch makes 250,000 objects, and all of them stay
    try:
        rest, settings = common_options(given)
        screen = (MutedScreen if number() else Screen)(json=settings.json, quiet=settings.quiet)
        messages.use(settings.language)
        if started() > 1 and rest and rest[0] not in SEVERAL:
            raise UseError("ranks.command", command=rest[0], started=started(), allowed=", ".join(SEVERAL))
        code = app.run(app.build(*rest[:1]), rest, screen)
        if started() > 1:
            leave()
        return code
    except PellucidError as wrong:
        if started() == 1 or speaks():
            screen.fault(str(wrong))
        return wrong.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has gone
        screen.close()
        return 141
    finally:
        messages.use(None)
        if argv is None:
            gc.freeze()  # the process ends, and its memory with it: nothing is left to collect


def leave() -> None:
    """End what this process exchanges with others, if it does."""
    if "pellucid.distributed" in sys.modules:
        from pellucid.distributed import leave

        leave()


def speaks() -> bool:
    """True if this process is the first of several to have an error."""
    from pellucid.signs_of_life import speaks

    return speaks()
