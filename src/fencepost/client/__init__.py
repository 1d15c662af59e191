"""The Python interface: sync and async twins over one set of operations."""
