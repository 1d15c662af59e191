"""From a URL to a publisher."""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.metadata import EntryPoint

import pytest

from fencepost.core.records import Message
from fencepost.errors import ConfigError
from fencepost.publishers import registry
from fencepost.publishers.base import Delivery, DestinationPublisher
from fencepost.publishers.http.publisher import HttpPublisher
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.publishers.registry import known_schemes, publisher_for
from fencepost.publishers.stdout import StdoutPublisher


class CarrierPigeon(DestinationPublisher):
    """A plug-in."""

    async def publish(self, message: Message, delivery: Delivery) -> None:
        """Let it fly."""


def not_a_publisher(url: str) -> str:
    return url


class Impostor:
    def __init__(self, url: str) -> None:
        self.url = url


def installed(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    entries = [EntryPoint(name=name, value=value, group=registry.GROUP) for name, value in targets.items()]
    monkeypatch.setattr(registry, "entry_points", lambda *, group: entries if group == registry.GROUP else [])


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("stdout:", StdoutPublisher),
        ("STDOUT://", StdoutPublisher),
        ("http://h/x", HttpPublisher),
        ("https://h", HttpPublisher),
        ("nats://h", NatsPublisher),
    ],
)
def test_each_built_in_scheme_has_its_publisher(url: str, kind: type[DestinationPublisher]) -> None:
    assert type(publisher_for(url)) is kind


def test_built_in_schemes_work_without_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    assert known_schemes() == tuple(sorted(registry.BUILT_IN))
    assert isinstance(publisher_for("stdout:"), StdoutPublisher)


def test_the_metadata_and_the_table_agree() -> None:
    entries = importlib.metadata.entry_points(group=registry.GROUP)
    ours = {entry.name: entry.value for entry in entries if entry.value.startswith("fencepost.")}
    assert ours in ({}, dict(registry.BUILT_IN)), "pyproject.toml and registry.BUILT_IN list the same"


def test_a_plug_in_adds_a_scheme_and_may_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Pigeon=f"{__name__}:CarrierPigeon", stdout=f"{__name__}:CarrierPigeon")
    assert "pigeon" in known_schemes()
    assert repr(publisher_for("pigeon://u:secret@loft")) == "<CarrierPigeon pigeon://***@loft>"
    assert isinstance(publisher_for("stdout:"), CarrierPigeon)


def test_two_packages_for_one_scheme_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pigeon="a:B", PIGEON="c:D")
    with pytest.raises(ConfigError, match=r"two packages answer to 'pigeon': a:B and c:D"):
        publisher_for("stdout:")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("no.such.module:X", "cannot be loaded"),
        (f"{__name__}:Absent", "cannot be loaded"),
        (f"{__name__}:not_a_publisher", "must be a class"),
        ("fencepost.publishers.base:DestinationPublisher", "must be a class that has publish"),
        (f"{__name__}:Impostor", "is not a DestinationPublisher"),
    ],
)
def test_a_broken_plug_in_says_which(monkeypatch: pytest.MonkeyPatch, target: str, text: str) -> None:
    installed(monkeypatch, pigeon=target)
    with pytest.raises(ConfigError, match=text) as error:
        publisher_for("pigeon:")
    assert target in str(error.value)


def test_an_unknown_scheme_lists_the_known_ones_and_the_extras() -> None:
    with pytest.raises(ConfigError) as error:
        publisher_for("pigeon://user:secret@h/loft")
    text = str(error.value)
    assert "'pigeon' (pigeon://***@h/loft)" in text
    assert "http, https, kafka, mqtt" in text
    assert "pip install 'fencepost[http]'" in text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (
            "http://h/?timeuot=1",
            "unknown option 'timeuot'; this destination knows: allow_private, ca, cert, ",
        ),
        ("nats://h?timeuot=1", "unknown option 'timeuot'; this destination knows: ca, cert, creds, "),
        ("stdout:?x=1", "this destination knows: timeout"),
        ("http:///x", "exactly one host"),
        ("http://a,b/x", "exactly one host"),
        ("http:x", "exactly one host"),
        ("http://u%3Ax:p@h/", "user name cannot hold ':'"),
        ("https://h/?ca=/no/such.pem", "cannot be read"),
        ("http://h/?max_connections=0", "max_connections"),
        ("http://h/?ca=x", "ca= has a meaning with https only"),
        ("http://h/?allow_private=1", "allow_private must be on, off, or networks"),
        ("http://h/?secret_env=NO_SUCH_VARIABLE_1", "NO_SUCH_VARIABLE_1 (secret_env) is not set"),
        ("http://u:p@h/?token_file=/dev/null", "token_file='/dev/null' is empty"),
        ("http://\u2100/", "not a valid URL"),
        ("http://\u00fc\u202e/", "not a valid URL"),
        ("http://[::g]/", "not a valid URL"),
        ("http://a..b/", "not a valid URL"),
        ("http://" + "x" * 64, "not a valid URL"),
        ("nats:", "name the server"),
        ("nats://h1,,h2", "name the server"),
        ("nats://h/subject", "no path"),
        ("nats://h?subject=a.*", "cannot hold blanks"),
        ("nats://h?subject=a%20b", "cannot hold blanks"),
        ("nats://h?subject=", "must have 1 to 128"),
        ("nats://h?subject=a..b", "cannot start, end or go on"),
        ("nats://h?subject={typo}", "fields are {event_type}, {queue}"),
        ("nats://h?subject={event_type!r}", "fields are"),
        ("nats://h?subject={event_type:>9}", "fields are"),
        ("nats://h?subject={", "subject"),
        ("nats://h?subject=" + "x" * 129, "must have 1 to 128"),
        ("nats://u:p@h?creds=x", "choose one of"),
        ("nats://h?creds=/no/such", "creds='/no/such' cannot be read"),
        ("nats://h?tls=yes", "tls must be on, off, or first"),
        ("nats://h?tls=off&ca=x", "tls=off makes no use"),
        ("stdout://h", "nothing to address"),
        ("stdout:/x", "nothing to address"),
        ("", "must start with a scheme"),
    ],
)
def test_a_bad_url_is_a_config_error_that_says_what_is_wrong(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        publisher_for(url)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("http://h", "httpx", "fencepost[http]"),
        ("nats://h", "nats.aio.client", "fencepost[nats]"),
        ("mqtt://h", "mqtt5", "fencepost[mqtt]"),
    ],
)
def test_a_missing_client_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match="pip install") as error:
        publisher_for(url)
    assert extra in str(error.value)
