"""Splitting a generation batch into micro-batches, and a micro-batch into chunks."""
