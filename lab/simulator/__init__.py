"""The shipped dispatcher, several of it, on a virtual clock over the fake store, with faults at every await."""
