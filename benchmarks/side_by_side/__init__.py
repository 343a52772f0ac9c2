"""Stock TRL and Covey on the same work, measured side by side: what `benchmarks/step.py` is made of."""
