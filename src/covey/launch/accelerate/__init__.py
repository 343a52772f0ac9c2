"""The accelerate config of a run, from a file here or one of the user's."""

from covey.launch.accelerate.accelerate_config import accelerate_config

__all__ = ["accelerate_config"]
