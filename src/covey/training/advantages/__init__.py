"""From rewards to advantages: the objective of a step, and KL control."""
