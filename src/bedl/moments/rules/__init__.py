"""Rules: torch functions of Moments. `table` says which function has which; one file for each family."""

from bedl.moments.rules.table import (
    TABLE,
    approximate,
    approximation,
    elementwise,
    quadrature,
    register_rule,
    use_rules,
)

__all__ = ["TABLE", "approximate", "approximation", "elementwise", "quadrature", "register_rule", "use_rules"]
