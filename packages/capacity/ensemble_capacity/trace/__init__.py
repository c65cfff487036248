"""Draws a trace: `ensemble trace`."""
