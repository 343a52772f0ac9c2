"""Pushing a finished run to the hub."""
