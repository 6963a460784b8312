"""Benchmark data: downloads, UCI tables, image sets, what scikit-learn brings along."""
