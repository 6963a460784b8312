"""How good predictions are on tables that users have, and what to label next; `bedl bench` has the paper's tables."""
