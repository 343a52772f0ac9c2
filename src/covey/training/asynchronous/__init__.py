"""Completions written ahead of the step that trains on them: rounds, a thread with an engine, versions, schedules."""
