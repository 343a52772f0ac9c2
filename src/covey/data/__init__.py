"""Data: sources (hub, local files, built-in tasks), mixtures, columns, prompts. The entry point is `load`."""

from covey.data.lengths import filter_by_length
from covey.data.loading import LoadedData, load

__all__ = ["LoadedData", "filter_by_length", "load"]
