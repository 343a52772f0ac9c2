"""Processes that run the user's code on model output and cannot harm the trainer: forked, limited, killed, replaced."""
