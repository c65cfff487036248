"""Picks a cascade's order and thresholds on labelled images."""
