"""Other versions and models while the server answers: canaries, shadows, feedback with true labels, and loading."""
