"""Secrets and TLS of a destination: from its URL, from the environment or from files; never shown.

Every destination takes the same options. ``user_env``, ``password_env`` and so on name an environment variable,
``user_file`` and ``password_file`` a file whose text is the secret (one line end at its end is left out). They are
read each time a connection is made, so that a secret that is rotated needs no restart.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.address import MASK, Address

LOGIN_OPTIONS = frozenset({"user_env", "user_file", "password_env", "password_file"})
TLS_OPTIONS = frozenset({"ca", "cert", "key"})
"""PEM files: authorities to trust instead of the usual ones; a client certificate, and its key."""

REREAD_SECONDS = 1.0

MIN_SECRET_CHARS = 4
"""Shorter ones are no secrets, and masking every '1' would leave an error that nobody can read."""


class Secret:
    """One secret of a destination, wherever it stands.

    Args:
        address: the destination.
        name: ``user``, ``password`` or another one; the options are ``<name>_env`` and ``<name>_file``.
        in_url: its value in the URL, if any.

    Raises:
        ConfigError: it is given twice, or its variable or file cannot be read now.
    """

    def __init__(self, address: Address, name: str, in_url: str | None = None) -> None:
        self._shown, self._name, self._in_url = address.display, name, in_url
        self._variable = address.options.get(f"{name}_env")
        self._file = address.options.get(f"{name}_file")
        if sum(each is not None for each in (in_url, self._variable, self._file)) > 1:
            raise ConfigError(f"{address.display}: {name} is given twice: in the URL, {name}_env or {name}_file")
        try:
            self.read()
        except Retryable as error:
            raise ConfigError(str(error)) from None

    def __repr__(self) -> str:
        return f"<Secret {self._name} {MASK}>"

    @property
    def is_given(self) -> bool:
        return not (self._in_url is None and self._variable is None and self._file is None)

    def read(self) -> str | None:
        """Return the secret as it stands now, None where none is configured.

        Raises:
            Retryable: its variable or its file is gone; the text names it, and never the secret.
        """
        if self._variable is not None:
            value = os.environ.get(self._variable)
            if not value:
                raise self._missing(f"the environment variable {self._variable} ({self._name}_env) is not set")
            return value
        if self._file is not None:
            return self._from_file(self._file)
        return self._in_url

    def _from_file(self, path: str) -> str:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise self._missing(f"{self._name}_file={path!r} cannot be read: {reason}") from None
        text = text.removesuffix("\n").removesuffix("\r")
        if not text:
            raise self._missing(f"{self._name}_file={path!r} is empty")
        return text

    def _missing(self, text: str) -> Retryable:
        return Retryable(f"{self._shown}: {text}", unavailable=True)


class Login:
    """User name and password of a destination.

    Raises:
        ConfigError: as for `Secret`.
    """

    def __init__(self, address: Address) -> None:
        self._user = Secret(address, "user", address.username)
        self._password = Secret(address, "password", address.password)

    @property
    def is_given(self) -> bool:
        return self._user.is_given or self._password.is_given

    def read(self) -> tuple[str | None, str | None]:
        """Return user name and password as they stand now.

        Raises:
            Retryable: as for `Secret.read`.
        """
        return self._user.read(), self._password.read()


Made = TypeVar("Made")


class Reread(Generic[Made]):
    """What is made from secrets, for a destination that needs it often: made anew once a second at most.

    Args:
        make: reads the secrets and makes it.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._due = 0.0
        self.last: Made | None = None
        """As it was made last, None before that: for `redacted`, which must not fail."""

    def now(self) -> Made:
        """Return it as the secrets stand now, or stood a moment ago."""
        instant = time.monotonic()
        if self.last is None or instant >= self._due:
            self.last = self._make()
            self._due = instant + REREAD_SECONDS
        return self.last


def redacted(text: str, secrets: Iterable[str | None]) -> str:
    """Return ``text`` without these secrets, also percent-encoded: a broker's error may repeat them."""
    found = {secret for secret in secrets if secret and len(secret) >= MIN_SECRET_CHARS}
    found |= {quote(secret, safe="") for secret in found}
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def tls_context(address: Address) -> ssl.SSLContext:
    """Return the TLS settings for a client: the server's name is always checked.

    Raises:
        ConfigError: a file of `TLS_OPTIONS` cannot be read or is not what it should be; the text names it.
    """
    ca, cert, key = (address.options.get(name) for name in ("ca", "cert", "key"))
    if key is not None and cert is None:
        raise ConfigError(f"{address.display}: key= needs cert=, the client certificate that it belongs to")
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{address.display}: ca={ca!r} cannot be read: {error.strerror or error}") from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except OSError as error:
            raise ConfigError(
                f"{address.display}: cert={cert!r} with key={key!r} cannot be read: {error.strerror or error}"
            ) from None
    return context
