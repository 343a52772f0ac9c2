"""All checks before a run: data, answers, memory, trackers, engine."""
