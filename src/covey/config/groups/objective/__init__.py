"""The group `objective`: settings of the objectives and of KL control, and their checks."""
