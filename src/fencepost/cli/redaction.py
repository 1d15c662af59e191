"""Keeps secrets out of everything that is printed or logged."""

from __future__ import annotations

import os
import re

from fencepost.cli.settings.addresses import spellings, store_secrets, target_secrets
from fencepost.config import Settings
from fencepost.publishers.address import MASK

# Of an address that nobody told us about, such as one in a publisher's own error text.
_USER_INFORMATION = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]+@")
# Of one that could not be read, such as a database's with '=' where '?' belongs.
_PASSWORD = re.compile(rf"(?<=password=)(?!{re.escape(MASK)}(?!\w))[^\s&]+")


class Redactor:
    """Replaces known secrets in texts, and the password of anything that looks like a URL."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._add(os.environ.get("PGPASSWORD", ""))

    def learn(self, settings: Settings) -> None:
        """Remember the secrets of these settings."""
        if settings.store is not None:
            self.learn_store(settings.store)
        if settings.dispatcher.listen_store is not None:
            self.learn_store(settings.dispatcher.listen_store)
        targets = [target for _, target in settings.destinations]
        targets += [route.to for route in settings.routes if isinstance(route.to, str)]
        for target in targets:
            for secret in target_secrets(target):
                self._add(secret)

    def learn_store(self, address: str) -> None:
        """Remember the secrets of a store's checked address."""
        for secret in store_secrets(address):
            self._add(secret)

    def __call__(self, text: str) -> str:
        """Return the text with every secret masked."""
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        return _PASSWORD.sub(MASK, _USER_INFORMATION.sub(rf"\1:{MASK}@", text))

    def _add(self, secret: str) -> None:
        self._secrets |= spellings(secret)
        if self._secrets:
            # The longest first, and whole words only: a password "post" must not make a riddle of "postgresql".
            found = "|".join(re.escape(each) for each in sorted(self._secrets, key=len, reverse=True))
            self._pattern = re.compile(rf"(?<!\w)(?:{found})(?!\w)")
