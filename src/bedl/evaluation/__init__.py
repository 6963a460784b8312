"""Scores, tasks and pages: predictions in, numbers and HTML out. No model, no torch."""
