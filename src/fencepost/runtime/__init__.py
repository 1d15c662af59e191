"""The long-running part: the dispatcher and what keeps its leases honest. Written once, async."""
