"""The `covey` commands, one module each, composed from the other packages. Heavy imports happen inside the commands."""
