"""Experiments whose tables and pictures are in docs/experiments."""
