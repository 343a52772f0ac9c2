"""The command line: one small file per command; composition only. Heavy imports happen inside commands."""
