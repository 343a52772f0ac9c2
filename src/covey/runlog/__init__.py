"""The run directory: its paths, the names of metrics and columns, and reading and writing its files."""

from covey.runlog.checkpoint import CHECKPOINT_MARKER, changed_files, is_complete, mark_complete, unmark
from covey.runlog.completions import count_completions, drop_completions_after, read_completions, write_completions
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, json_line, write_atomically
from covey.runlog.metrics import MetricsWriter, Row, Value, read_metrics, series

__all__ = [
    "CHECKPOINT_MARKER",
    "MetricsWriter",
    "Row",
    "RunDirectory",
    "Value",
    "changed_files",
    "count_completions",
    "drop_completions_after",
    "guard_disk",
    "is_complete",
    "json_line",
    "mark_complete",
    "read_completions",
    "read_metrics",
    "series",
    "unmark",
    "write_atomically",
    "write_completions",
]
