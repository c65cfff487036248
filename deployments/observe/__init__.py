"""What is seen of the application: traces and metrics."""
