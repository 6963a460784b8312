"""Gaussian layers, and the way from an existing network to one made of them."""

from bedl.moments.rules._base import variance_products
from bedl.moments.rules.correlated import shared_draws
from bedl.nn.convert import bayesianize, deterministic, kept_deterministic, warn_if_deterministic
from bedl.nn.correction import correct_variances, remove_correction, std_ratio
from bedl.nn.layers import (
    GaussianBilinear,
    GaussianConv1d,
    GaussianConv2d,
    GaussianConv3d,
    GaussianConvTranspose1d,
    GaussianConvTranspose2d,
    GaussianConvTranspose3d,
    GaussianEmbedding,
    GaussianEmbeddingBag,
    GaussianLayer,
    GaussianLinear,
    GaussianMultiheadAttention,
    GaussianParameter,
)
from bedl.nn.recurrent import GaussianGRU, GaussianGRUCell, GaussianLSTM, GaussianLSTMCell, GaussianRNN, GaussianRNNCell
from bedl.nn.sampling import cached_weights, check_not_cached, drawn_function, sampled

__all__ = [
    "GaussianBilinear",
    "GaussianConv1d",
    "GaussianConv2d",
    "GaussianConv3d",
    "GaussianConvTranspose1d",
    "GaussianConvTranspose2d",
    "GaussianConvTranspose3d",
    "GaussianEmbedding",
    "GaussianEmbeddingBag",
    "GaussianGRU",
    "GaussianGRUCell",
    "GaussianLSTM",
    "GaussianLSTMCell",
    "GaussianLayer",
    "GaussianLinear",
    "GaussianMultiheadAttention",
    "GaussianParameter",
    "GaussianRNN",
    "GaussianRNNCell",
    "bayesianize",
    "correct_variances",
    "deterministic",
    "drawn_function",
    "cached_weights",
    "kept_deterministic",
    "check_not_cached",
    "remove_correction",
    "std_ratio",
    "sampled",
    "shared_draws",
    "variance_products",
    "warn_if_deterministic",
]
