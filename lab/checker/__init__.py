"""The checker: reads the history of a run and its tables, and judges whether the guarantees held.

It takes nobody's word for anything: it imports nothing of fencepost and nothing of the rest of the lab.
"""
