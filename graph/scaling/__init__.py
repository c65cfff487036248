"""Where earlier configurations name the autoscaling policy: `graph.scaling.latency:LatencyTarget`."""
