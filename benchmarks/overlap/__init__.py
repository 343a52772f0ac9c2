"""Parts of `benchmarks/async.py`: a simulated engine, the ideal overlap, and runs of both sides side by side."""
