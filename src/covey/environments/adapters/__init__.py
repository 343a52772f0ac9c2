"""Environments of other libraries, in TRL's contract: a module per prefix of `environment.factory`."""
