"""What is checked before a run: packages, hardware, data, rewards, environments, memory, trackers."""
