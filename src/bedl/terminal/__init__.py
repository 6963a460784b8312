"""What a person at a terminal sees: lines, bars, tables and errors; and what ends a command early."""
