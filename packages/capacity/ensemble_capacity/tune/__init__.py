"""Searches the settings that suit a goal, by measuring servers."""
