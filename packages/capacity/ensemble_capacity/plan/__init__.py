"""Predicts what a configuration holds on a machine: a profile of short measurements, and a simulation."""
