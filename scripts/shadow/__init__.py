"""Says whether a shadow should be promoted."""
