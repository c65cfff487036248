"""Draws a trace: `python -m scripts.trace`."""
