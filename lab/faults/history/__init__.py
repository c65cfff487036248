"""Checks that every answer in a recorded history was possible while faults were done to the server."""
