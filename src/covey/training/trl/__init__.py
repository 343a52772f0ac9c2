"""The trainer, and all else that depends on TRL: the only package that imports it."""
