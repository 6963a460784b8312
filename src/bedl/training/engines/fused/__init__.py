"""Many networks of a known build as one, without `torch.func.vmap`: the same numbers up to rounding, in fewer calls."""

from bedl.training.engines.fused.layers import FlatParameters, parameter_order
from bedl.training.engines.fused.network import FusedNetworks, UnsupportedModule, with_coefficients

__all__ = ["FusedNetworks", "UnsupportedModule", "FlatParameters", "parameter_order", "with_coefficients"]
