"""Evaluation with tools and environments: the episodes, what is kept of them, and the conversation as text."""
