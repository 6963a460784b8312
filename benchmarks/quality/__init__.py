"""How good the predictions are: tables with known splits, tables that users have, gaps, and what to label next."""
