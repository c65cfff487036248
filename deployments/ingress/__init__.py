"""The door: admission, deadlines and batching, alike for every protocol, and the protocols."""
