"""A run that ends with an error says so in its log, its `summary.json` and its report."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from covey.errors import CoveyError, EndedElsewhereError
from covey.report.end_of_run import write_end_of_run
from covey.runlog.directory import RunDirectory
from covey.runlog.ending import write_failure
from covey.runlog.locks import DeletedError
from covey.training.distributed.processes import Processes

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def recording_failure(run: RunDirectory, processes: Processes, console: Any) -> Iterator[None]:
    """Context manager: an error is logged with its traceback and written to the run, by the first process that fails.

    A second Ctrl-C is no error: the run was stopped, and goes on from its newest checkpoint. An unexpected error of a
    run whose folder was emptied or deleted is a `DeletedError`.
    """
    try:
        yield
    except (KeyboardInterrupt, EndedElsewhereError):
        raise
    except BaseException as error:
        if not isinstance(error, CoveyError):
            run.refuse_deleted()
        if processes.is_first_to_fail(error) and run.config.exists() and not isinstance(error, DeletedError):
            logger.error("The run failed.", exc_info=True)
            with contextlib.suppress(OSError, CoveyError):  # such as a full disk, of which the error itself tells
                write_failure(run, error)
            if processes.count == 1:  # others end soon, and a launcher then ends this one before its message
                _write_report(run, console)
        raise


def _write_report(run: RunDirectory, console: Any) -> None:
    try:
        with console.status("Writing the report …"):
            problems = write_end_of_run(run, finished=False)
    except Exception:  # it must not take the place of the error
        logger.warning("The report could not be written.", exc_info=True)
        return
    more = f", and {run.report} what it did until then" if run.report.is_file() and not problems else ""
    text = f"· The run failed: {run.log} has the traceback{more}."
    console.print(text, markup=False, highlight=False, soft_wrap=True)
