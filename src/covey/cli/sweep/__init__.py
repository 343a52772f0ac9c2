"""`covey train --multirun`: expand the jobs, check every one, launch them through Hydra, compare them."""

from covey.cli.sweep.command import run_sweep

__all__ = ["run_sweep"]
