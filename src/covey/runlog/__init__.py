"""The run directory: where everything lies, what every metric and column is called, how files are read and written."""

from covey.runlog.completions import count_completions, drop_completions_after, read_completions, write_completions
from covey.runlog.directory import CHECKPOINT_MARKER, RunDirectory, is_whole, mark_whole, unmark
from covey.runlog.files import guard_disk, json_line, write_atomically
from covey.runlog.metrics import MetricsWriter, Row, Value, read_metrics, series

__all__ = [
    "CHECKPOINT_MARKER",
    "MetricsWriter",
    "Row",
    "RunDirectory",
    "Value",
    "count_completions",
    "drop_completions_after",
    "guard_disk",
    "is_whole",
    "json_line",
    "mark_whole",
    "read_completions",
    "read_metrics",
    "series",
    "unmark",
    "write_atomically",
    "write_completions",
]
