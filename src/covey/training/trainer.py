"""The documented path of the trainer; it is `covey.training.trl.trainer`."""

from covey.training.trl.trainer import GRPOConfig, GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]
