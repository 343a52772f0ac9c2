"""Data: sources (hub, local files, built-in tasks), mixtures, columns, prompts. `load` is the way in."""

from covey.data.lengths import filter_by_length
from covey.data.loading import LoadedData, load

__all__ = ["LoadedData", "filter_by_length", "load"]
