"""The pictures of the documentation, drawn from its own figures, by one style."""
