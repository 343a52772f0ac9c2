"""Composing the config: Hydra's groups, recipes, overrides, merging, and writing it out again."""
