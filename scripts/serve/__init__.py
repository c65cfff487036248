"""Serves an application in the foreground: `python -m scripts.serve`."""
