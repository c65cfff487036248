"""Nodes made of nodes. They run in their caller's process, so they cost no hop, and import nothing of Ray."""
