"""Generation with transformers models: a group's prompt computed once, finished rows removed."""
