"""Features of ensemble-serving: what an application can do besides classifying, a folder or a file each."""
