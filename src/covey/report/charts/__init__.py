"""Charts of the report, as images and as HTML."""
