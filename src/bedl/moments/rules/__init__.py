"""Rules: torch functions of Moments. `table` says which function has which; one file for each family."""

from bedl.moments.dispatch import register_rule, use_rules
from bedl.moments.rules._base import approximate, approximation, elementwise
from bedl.moments.rules.numerical import quadrature
from bedl.moments.rules.table import TABLE

__all__ = ["TABLE", "approximate", "approximation", "elementwise", "quadrature", "register_rule", "use_rules"]
