"""Running environments and tools in worker processes: one process per live instance, with deadlines and limits."""
