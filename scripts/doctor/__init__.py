"""Says what is wrong with this machine or a configuration: `ensemble doctor`."""
