"""`covey train --multirun`: expand and check the jobs, launch them through Hydra, compare the runs."""

from covey.cli.sweep.command import run_sweep

__all__ = ["run_sweep"]
