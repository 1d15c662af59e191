"""Signatures as standardwebhooks.com specifies them, so that a receiver knows who sent a message, and when.

``webhook-signature`` holds ``v1,`` and the base64 of an HMAC-SHA256 over ``id.timestamp.body``, one for each
secret, separated by blanks: while secrets are rotated a receiver finds one that it knows.
"""

from __future__ import annotations

import base64
import hmac
import re

from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.address import Address
from fencepost.publishers.credentials import Reread, Secret

SECRET_OPTIONS = frozenset({"secret_env", "secret_file"})
PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64
MAX_SECRETS = 5


class Signer:
    """Signs for one destination, with all secrets that ``secret_env`` or ``secret_file`` hold now.

    Raises:
        ConfigError: it is none, as for `Secret`.
    """

    def __init__(self, address: Address) -> None:
        self._shown = address.display
        self._secret = Secret(address, "secret")
        self._keys = Reread(self._read)
        try:
            self._keys.now()
        except Retryable as error:
            raise ConfigError(str(error)) from None

    @property
    def is_given(self) -> bool:
        return self._secret.is_given

    def headers(self, message_id: str, body: bytes, instant: float) -> dict[str, str]:
        """Return the three headers for this attempt, none where there is no secret.

        Args:
            message_id: the same in each attempt; without dots.
            body: exactly as it is sent.
            instant: seconds since 1970, the time of this attempt.

        Raises:
            Retryable: the secrets are gone, or are none any more.
        """
        keys = self._keys.now()
        if not keys:
            return {}
        timestamp = str(int(instant))
        signed = b"%s.%s.%s" % (message_id.encode(), timestamp.encode(), body)
        signatures = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
        }

    def secrets(self) -> list[str]:
        """Return what must not be shown, as it was last read."""
        return [base64.b64encode(key).decode().rstrip("=") for key in self._keys.last or ()]

    def _read(self) -> tuple[bytes, ...]:
        found = [text for text in re.split(r"[\s,]+", self._secret.read() or "") if text]
        if self._secret.is_given and not 1 <= len(found) <= MAX_SECRETS:
            raise self._wrong(f"it must hold 1 to {MAX_SECRETS} secrets, separated by blanks")
        return tuple(self._key(text) for text in found)

    def _key(self, text: str) -> bytes:
        encoded = text.removeprefix(PREFIX).rstrip("=")
        try:
            key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except ValueError:
            key = b""
        if not text.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise self._wrong(f"each must be {PREFIX} and {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes in base64")
        return key

    def _wrong(self, text: str) -> Retryable:
        return Retryable(f"{self._shown}: the signing secret cannot be used: {text}", unavailable=True)
