"""What the page of one run shows besides its curves and completions: the same as its report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import yaml

from covey.report.answer_modes import modes_rows
from covey.report.evaluations import evaluation_rows
from covey.report.evidence import Evidence
from covey.report.findings import findings
from covey.report.headline import how_it_ended, key_settings
from covey.report.load import RunRecord
from covey.report.summary import Change, changes


def run_page(record: RunRecord) -> dict[str, Any]:
    """Summary, findings, settings, evaluations and config of a run."""
    changed = changes(record)
    return {
        "title": record.title,
        "ended": how_it_ended(record)[1],
        "traceback": record.summary.get("traceback"),
        "changes": [_change(one) for one in changed],
        "findings": [asdict(one) for one in findings(Evidence.of(record, changed))],
        "settings": [list(pair) for pair in key_settings(record)],
        "config": yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True) if record.config else "",
        "evaluations": [
            {
                "set": row.label,
                "weights": row.state,
                "sampling": row.sampling,
                "problems": row.problems,
                "samples": row.samples,
                "text": row.text,
                "folder": row.folder,
            }
            for row in evaluation_rows(record.run)
        ],
        "modes": [asdict(row) for row in modes_rows(record.rows)],
    }


def _change(one: Change) -> dict[str, Any]:
    before, after, difference = one.values
    percent = one.in_percent
    return {
        "what": one.what,
        "steps": list(one.steps),
        "before": before,
        "after": after,
        "texts": list(one.texts),
        "difference": difference,
        "verdict": one.verdict,
        "tested": one.paired.found is not None,
        "test": one.test_text,
        "percent": percent and [asdict(end) for end in percent],
    }
