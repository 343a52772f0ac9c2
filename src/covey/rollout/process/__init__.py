"""Covey's own engine in a process of its own, so that it samples while the trainer learns."""
