"""Means and variances of random tensors, and the rules that carry them through torch functions."""

from bedl.moments.moments import Moments, as_moments, variance_dtype

# Last, because rules build on Moments: whoever has Moments has their rules.
from bedl.moments import rules as _rules  # noqa: F401  # isort: skip

__all__ = ["Moments", "as_moments", "variance_dtype"]
