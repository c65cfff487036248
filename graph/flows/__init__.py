"""Nodes made of nodes. They run in their caller's process, so they cost no hop, and know nothing of Ray."""
