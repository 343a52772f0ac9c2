"""Training: the trainer, its exact state, callbacks, the live display and the run."""
