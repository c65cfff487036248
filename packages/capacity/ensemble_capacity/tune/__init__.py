"""Searches the settings that suit a goal: by predictions first, and by measuring the best."""
