"""APIs of other model servers: members that they run, and protocols by which their clients reach the ensemble."""
