"""Callbacks: metrics and completions, evaluation, stopping."""
