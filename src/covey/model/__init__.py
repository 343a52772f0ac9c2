"""Model loading, adapters, export, attention, the reasoning vocabulary and the starter model."""
