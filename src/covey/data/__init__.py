"""Data: sources (hub, local files, built-in tasks), columns, prompts. `load` is the way in."""

from covey.data.loading import LoadedData, load

__all__ = ["LoadedData", "load"]
