"""The config groups: their dataclasses, with every field documented, and their checks."""
