"""Each guarantee, judged: a function that takes the evidence and returns what it found."""
