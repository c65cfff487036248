"""What an application can do besides classifying: one folder for each capability, listed in `listed.py`."""
