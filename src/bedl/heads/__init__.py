"""Heads: Moments of a network's outputs in, a prediction out."""

from __future__ import annotations

from bedl.heads.base import Head
from bedl.heads.dirichlet import Dirichlet
from bedl.heads.normal import Normal

__all__ = ["Dirichlet", "Head", "Normal"]
