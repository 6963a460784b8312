"""The pictures of README and of the documentation."""
