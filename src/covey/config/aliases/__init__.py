"""Other tools' names for Covey's keys, and what their values mean here."""
