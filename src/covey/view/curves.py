"""The curves of a run as data: the panels of the report, and the axes to draw them over."""

from __future__ import annotations

from typing import Any

from covey.report.charts.curves_html import values
from covey.report.charts.panels import make_sections
from covey.report.load import RunRecord
from covey.runlog import names
from covey.view.entries import seconds_of, tokens_of


def curves(record: RunRecord) -> dict[str, Any]:
    """The axes, one value for each step with metrics, and the panels under their headings."""
    rows = record.rows
    return {
        "axes": {
            "step": [row[names.STEP] for row in rows],
            "seconds": [round(seconds, 2) for seconds in seconds_of(rows)],
            "tokens": tokens_of(rows),
        },
        "sections": [
            [heading, [values(panel) for panel in panels]] for heading, panels in make_sections(rows, record.config)
        ],
    }
