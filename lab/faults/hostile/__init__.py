"""Hostile input: what nobody who means well sends, each piece made anew from a seed and its number."""
