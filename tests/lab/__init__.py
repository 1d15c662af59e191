"""The lab's own tests: a short, real run of each part, and proof that each part can fail."""
