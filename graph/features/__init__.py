"""What an application can do besides classifying: one folder for each feature."""
