"""The commands for models: `ensemble init`, `prepare`, `quantize`, `calibrate`, `check` and others."""
