"""Environments of other libraries, in TRL's contract: one module per prefix of `environment.factory`, imported when it is named."""
