"""The terminal display of a run."""
