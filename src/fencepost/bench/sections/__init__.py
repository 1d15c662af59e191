"""One module a section of the report: ``measure(bench)`` returns what it found."""
