"""HTML reports, figures, tables and the model card, made from the files of a run directory."""
