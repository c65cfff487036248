"""The ingress: admission, deadlines and batching, alike for every protocol, and the protocols."""
