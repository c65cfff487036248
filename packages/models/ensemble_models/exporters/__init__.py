"""Readers of what exporters write in a model and beside it: classes, pixels, resizing, kind of head."""
