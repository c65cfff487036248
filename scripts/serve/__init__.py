"""Serves an application in the foreground: `ensemble serve`."""
