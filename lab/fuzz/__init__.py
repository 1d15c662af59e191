"""Fuzz: every input that enters, odd and broken, against an oracle that can fail."""
