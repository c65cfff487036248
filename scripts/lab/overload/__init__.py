"""Sends labelled images at a given rate, and tells second by second what came back."""
