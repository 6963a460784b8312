"""Gaussian processes in the terms of GPyTorch, which is imported here and nowhere else: it is an extra."""
