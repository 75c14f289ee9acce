"""The pipeline and its run files."""
