"""What fencepost's own tests use and yours may too. Needs no test framework to import.

- `RecordingPublisher` stands in for a destination and fails as scripted.
- `sample_message` and `sample_delivery` make what a publisher is called with.
- `fencepost.testing.publisher_conformance` is the suite that every destination passes.
"""

from fencepost.testing.recording import Recorded, RecordingPublisher
from fencepost.testing.samples import sample_delivery, sample_message

__all__ = ["Recorded", "RecordingPublisher", "sample_delivery", "sample_message"]
