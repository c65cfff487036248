"""What an application can do besides classifying: a folder for each capability, listed in `listed.py`."""
