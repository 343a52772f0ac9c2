"""Data: sources (hub, local files, built-in tasks), mixtures, columns, prompts. The entry point is `load`."""

from covey.data.load import LoadedData, filter_by_length, load

__all__ = ["LoadedData", "filter_by_length", "load"]
