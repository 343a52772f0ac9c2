"""Completions of an evaluation: sampled, played as episodes with tools, graded, and as text."""
