"""Errors, files, processes and imports: what every package may use, and what knows none of them."""
