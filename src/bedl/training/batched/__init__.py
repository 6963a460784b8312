"""Many networks of a known build as one, without `torch.func.vmap`: the same numbers up to rounding, in fewer calls."""

from bedl.training.batched.losses import with_numbers
from bedl.training.batched.network import Batched, NotKnown
from bedl.training.batched.rows import Rows, in_rows

__all__ = ["Batched", "NotKnown", "Rows", "in_rows", "with_numbers"]
