"""`accelerate launch` as `covey launch` runs it: after a stop signal or a failed process it exits with the matching
code and without a traceback, since the processes have reported the cause.
"""

from __future__ import annotations

import logging
import sys


def main() -> int:
    """Run accelerate's command line; returns the exit code."""
    from accelerate.commands.accelerate_cli import main as accelerate
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    try:
        accelerate()
    except SignalException as stop:
        return 128 + int(stop.sigval)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        code = int(failure.exitcode)
        if code < 0:  # it could not report this itself
            print(f"Training process {rank} was killed by {failure.signal_name()}.", file=sys.stderr)
        return 128 - code if code < 0 else code
    return 0


if __name__ == "__main__":
    sys.exit(main())
