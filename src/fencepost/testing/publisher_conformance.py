"""The suite that every destination passes, against the real thing: subclass it for your own publisher.

Five lines where you have just a publisher, and a way to read what arrived::

    class TestMyPublisher(PublisherConformance):
        opt_outs = opted_out("it is there or it is not", *FAULTS, "durable", "too_large", "unroutable")

        def harness(self) -> PublisherHarness:
            return SimpleHarness(lambda: MyPublisher(timeout=self.timeout), read_what_arrived)

The same for a server that listens on a port; a `FaultProxy` in front of it plays the faults::

            return ProxiedHarness(lambda port: MyPublisher(port, timeout=self.timeout), read, port=4222)

Or write a `PublisherHarness` that starts, stops, freezes and reads your server.

Any test runner that collects ``test_`` methods will do: each is an ordinary function that runs its own event
loop. What a destination cannot have is opted out of by name *with the reason* (`CAPABILITIES`); the suite checks
that the name exists and the reason is there:

===============  =======================================================================================
``stop``         it can be stopped and started again at the same address
``unavailable``  that nothing listens there can be told from a failure of one message
``restart``      both at once, with the same publisher object before and after
``durable``      what it acknowledged is still there after a restart
``pause``        it can be frozen: connections stay, nothing is answered
``silence``      messages reach it and its acknowledgements do not come back
``black_hole``   nothing passes either way, and no connection is closed
``cut``          connections can be reset while publishes are in flight
``nothing_late`` what failed because there was no connection is never sent afterwards
``unroutable``   a place in it can be missing, and it says so
``too_large``    it has a size limit
``free_text``    any text can stand in any field
``header_names`` a header name can be impossible to send
``headers``      it carries the message's headers
``identity``     it carries the attempt, the token, the key and what was replayed
===============  =======================================================================================
"""

from __future__ import annotations

from fencepost.testing.conformance.batches import Batches
from fencepost.testing.conformance.delivered import Delivered
from fencepost.testing.conformance.harness import (
    FAULTS,
    NETWORK_FAULTS,
    ProxiedHarness,
    PublisherHarness,
    SimpleHarness,
    opted_out,
)
from fencepost.testing.conformance.network import Network
from fencepost.testing.conformance.outages import Outages
from fencepost.testing.conformance.received import Received, received_from
from fencepost.testing.conformance.rig import CAPABILITIES, Rig, scenario
from fencepost.testing.conformance.texts import FREE_TEXTS, PAYLOADS, USER_HEADERS
from fencepost.testing.fault_proxy import FaultProxy

__all__ = [
    "CAPABILITIES",
    "FAULTS",
    "FREE_TEXTS",
    "NETWORK_FAULTS",
    "PAYLOADS",
    "USER_HEADERS",
    "FaultProxy",
    "ProxiedHarness",
    "PublisherConformance",
    "PublisherHarness",
    "Received",
    "Rig",
    "SimpleHarness",
    "opted_out",
    "received_from",
    "scenario",
]


class PublisherConformance(Delivered, Batches, Outages, Network):
    """The tests. See this module's docstring for how to use it."""
