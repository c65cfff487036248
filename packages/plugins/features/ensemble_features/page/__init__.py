"""The page of an ensemble at `/`, and the figures of the last minutes at `/stats`."""
