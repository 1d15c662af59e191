"""A campaign of random faults against the order of messages, with real processes and a checker of its own."""
