"""The correctness lab: what tries to break fencepost, and what judges whether it did. Not part of the package."""
