"""The address of a queue or a topic, and the options that SQS and SNS share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from fencepost.errors import ConfigError
from fencepost.publishers.address import Address
from fencepost.publishers.credentials import Secret
from fencepost.publishers.envelope import ENVELOPE_OPTIONS

SECRETS = ("access_key", "secret_key", "session_token")
OPTIONS = (
    frozenset({"timeout", "endpoint", "profile", "max_bytes", "ca"})
    | {f"{name}_{where}" for name in SECRETS for where in ("env", "file")}
    | ENVELOPE_OPTIONS
)


@dataclass(frozen=True, slots=True)
class Place:
    """A queue or a topic."""

    region: str
    account: str | None
    name: str

    @property
    def is_fifo(self) -> bool:
        """Whether it is FIFO: AWS wants the suffix for these, and refuses it for others."""
        return self.name.endswith(".fifo")


def place_of(address: Address, service: str, name_pattern: str) -> Place:
    """Return what the URL names.

    Raises:
        ConfigError: it names no region and queue or topic, or one that AWS cannot have.
    """
    form = f"{service}://region/[account/]name" if service == "sqs" else f"{service}://region/account/name"
    if len(address.hosts) != 1 or address.hosts[0][1] is not None:
        raise ConfigError(f"{address.display}: it must be like {form}; another server is ?endpoint=http://…")
    region = address.hosts[0][0]
    path = re.fullmatch(rf"/(?:([0-9]{{12}})/)?({name_pattern})", address.path)
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", region) or path is None:
        raise ConfigError(f"{address.display}: it must be like {form}, the account being 12 digits")
    return Place(region, path[1], path[2])


def secrets_of(address: Address) -> dict[str, Secret]:
    """Return the credentials of the address, each of them not given where the AWS chain is to find them.

    Raises:
        ConfigError: one without the other.
    """
    in_url = {"access_key": address.username or None, "secret_key": address.password or None}
    secrets = {name: Secret(address, name, in_url.get(name)) for name in SECRETS}
    access_key, secret_key, token = (secrets[name].is_given for name in SECRETS)
    if access_key != secret_key or (token and not access_key):
        raise ConfigError(f"{address.display}: access_key and secret_key go together, session_token with them")
    return secrets


def endpoint_of(address: Address) -> str | None:
    """Return the server to talk to instead of AWS.

    Raises:
        ConfigError: it is no URL of a server.
    """
    endpoint = address.options.get("endpoint")
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        is_server = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    except ValueError:
        is_server = False
    if not is_server:
        raise ConfigError(f"{address.display}: endpoint must be like https://host:port, without a user")
    return endpoint
