"""Reports: from a run directory's files to what people look at."""
