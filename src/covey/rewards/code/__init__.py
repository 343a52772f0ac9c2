"""Rewards for programs: their tests are run in a sandbox."""
