"""What `fencepost.testing.publisher_conformance` is made of; import from there."""
