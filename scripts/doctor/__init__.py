"""Says what is wrong with this machine or a configuration: `python -m scripts.doctor`."""
