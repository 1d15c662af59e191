"""The rules, and nothing but the rules: standard library only, no I/O, no clock, no randomness."""
