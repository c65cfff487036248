"""Scales a deployment to a promise about its latency: `policy_function: graph.scaling.latency:LatencyTarget`."""
