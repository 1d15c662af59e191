"""The ``Authorization`` of HTTP requests: user name and password, or a bearer token."""

from __future__ import annotations

import base64
import re

from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.address import Address
from fencepost.publishers.credentials import LOGIN_OPTIONS, Login, Reread, Secret

AUTHORIZATION_OPTIONS = LOGIN_OPTIONS | {"token_env", "token_file"}


class Authorization:
    """What is sent to one destination, as its secrets stand now.

    Raises:
        ConfigError: as for `Secret`; both a login and a token; or text that HTTP cannot hold.
    """

    def __init__(self, address: Address) -> None:
        self._shown = address.display
        self._login, self._token = Login(address), Secret(address, "token")
        if self._login.is_given and self._token.is_given:
            raise ConfigError(f"{address.display}: choose one of user and password, and a token")
        self._values = Reread(self._read)
        try:
            self._values.now()
        except Retryable as error:
            raise ConfigError(str(error)) from None

    def header(self) -> str | None:
        """Return the value of ``Authorization``, None where there is none.

        Raises:
            Retryable: a secret is gone, or cannot be sent.
        """
        return self._values.now()[0]

    def secrets(self) -> tuple[str | None, ...]:
        """Return what must not be shown, as it was last read."""
        return self._values.last[1:] if self._values.last is not None else ()

    def _read(self) -> tuple[str | None, ...]:
        token = self._token.read()
        if token is not None:
            if not re.fullmatch(r"[!-~]+", token):
                raise self._wrong("a token can hold only printable ASCII without blanks")
            return f"Bearer {token}", token
        user, password = self._login.read()
        if user is None and password is None:
            return (None,)
        if ":" in (user or ""):
            raise self._wrong("a user name cannot hold ':' in HTTP Basic authentication")
        encoded = base64.b64encode(f"{user or ''}:{password or ''}".encode()).decode("ascii")
        return f"Basic {encoded}", encoded, user, password

    def _wrong(self, text: str) -> Retryable:
        return Retryable(f"{self._shown}: {text}", unavailable=True)
