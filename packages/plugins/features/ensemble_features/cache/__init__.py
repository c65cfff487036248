"""A memory of the members' predictions."""
