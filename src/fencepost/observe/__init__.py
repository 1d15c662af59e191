"""What others see of a running outbox. Knows only core; uses optional libraries where they are loaded already."""
