"""Destinations: one file each, found by URL scheme through `registry`."""
