"""metastate."""
