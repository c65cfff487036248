"""Predicts what a configuration holds on a machine: a profile of short loads, and a queue."""
