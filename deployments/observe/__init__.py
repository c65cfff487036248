"""Traces, metrics and statistics."""
