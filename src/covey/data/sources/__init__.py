"""Where rows come from: the hub, files, saved datasets, Kaggle, and the built-in tasks."""
