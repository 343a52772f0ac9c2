"""All checks before a run: settings, packages, data, rewards, environments, memory, trackers; and `covey doctor`."""
