"""Training: the trainer, checkpoints and resume, callbacks, the live display and the run."""
