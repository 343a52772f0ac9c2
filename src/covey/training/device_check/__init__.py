"""`covey doctor --device`: whether this device computes what it should, and how fast; without a download."""
