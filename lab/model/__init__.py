"""A model of the lease, the fence, the order and the inbox, of which spin explores every state. See README.md."""
