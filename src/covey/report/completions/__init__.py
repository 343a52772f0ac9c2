"""The completions browser of the report."""
