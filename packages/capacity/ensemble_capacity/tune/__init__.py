"""Searches the settings that suit a goal: over the simulation, and then by measuring the best."""
