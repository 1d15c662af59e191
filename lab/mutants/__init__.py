"""Small sabotages of the protocol's code and SQL, and which tests notice them."""
