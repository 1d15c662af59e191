"""Which addresses are refused: by table, and at the connection, so that no name can lead around the table."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.address import parse_address
from fencepost.publishers.http.private_addresses import Neighbourhood, literal
from fencepost.publishers.http.publisher import HttpPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.http_receiver import HttpReceiver

Answers = dict[str, list[list[str]]]


def neighbourhood(value: str | None = None) -> Neighbourhood:
    query = "" if value is None else f"?allow_private={value}"
    return Neighbourhood(parse_address(f"http://h/{query}", options={"allow_private"}))


class TestTable:
    @pytest.mark.parametrize(
        ("address", "what"),
        [
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("0.0.0.0", "unspecified"),  # noqa: S104 - nothing is bound here
            ("10.0.0.1", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("100.64.0.1", "carrier"),
            ("169.254.169.254", "link-local address, where clouds keep their credentials"),
            ("192.0.0.192", "reserved"),
            ("192.0.2.1", "documentation"),
            ("198.19.0.1", "benchmarks"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.250", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fe80::1", "link-local"),
            ("fe80::1%eth0", "link-local"),
            ("fd00:ec2::254", "private"),
            ("fc00::1", "private"),
            ("ff02::1", "multicast"),
            ("fec0::1", "reserved"),
            ("2001::1", "reserved"),
            ("2001:db8::1", "documentation"),
            ("100::1", "reserved"),
            ("64:ff9b:1::7f00:1", "reserved"),
            ("::ffff:127.0.0.1", r"\(that is 127.0.0.1\) is a loopback"),
            ("::ffff:a9fe:a9fe", r"\(that is 169.254.169.254\) is a link-local"),
            ("64:ff9b::10.0.0.1", r"\(that is 10.0.0.1\) is a private"),
            ("2002:7f00:1::1", r"\(that is 127.0.0.1\) is a loopback"),
            ("2002:c0a8:101::", r"\(that is 192.168.1.1\) is a private"),
            ("::127.0.0.1", "reserved"),
        ],
    )
    def test_refused_unless_allowed(self, address: str, what: str) -> None:
        with pytest.raises(AssertionError, match=what):
            raise AssertionError(neighbourhood().refusal(address))
        assert neighbourhood("off").refusal(address) is not None
        assert neighbourhood("on").refusal(address) is None

    @pytest.mark.parametrize(
        "address",
        [
            *("1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::"),
            *("64:ff9b::8.8.8.8", "::ffff:8.8.8.8", "2002:808:808::1"),
        ],
    )
    def test_public(self, address: str) -> None:
        assert neighbourhood().refusal(address) is None

    def test_networks_of_ones_own(self) -> None:
        own = neighbourhood("10.1.0.0/16,fd00:1::/32")
        assert own.refusal("10.1.2.3") is None
        assert own.refusal("::ffff:10.1.2.3") is None
        assert own.refusal("fd00:1::5") is None
        for address in ("10.2.0.1", "127.0.0.1", "169.254.169.254", "fd00:2::1", "::1"):
            assert "allow_private=on" in (own.refusal(address) or "")

    @pytest.mark.parametrize("value", ["yes", "", "10.1.0.1/16", "10.0.0.0/8,", "localhost", "ON"])
    def test_what_is_not_understood_is_an_error(self, value: str) -> None:
        with pytest.raises(ConfigError, match="allow_private must be on, off, or networks"):
            neighbourhood(value)

    @given(st.integers(0, 2**32 - 1).map(IPv4Address))
    def test_no_stricter_and_no_laxer_than_python(self, address: IPv4Address) -> None:
        refused = neighbourhood().refusal(str(address)) is not None
        if refused:
            odd = any(address in network for network in map(ip_network, ("192.0.0.0/24", "192.88.99.0/24")))
            assert not address.is_global or address.is_multicast or odd
        else:
            assert address.is_global

    @given(st.integers(0, 2**128 - 1).map(IPv6Address))
    def test_every_ipv6_address_has_an_answer(self, address: IPv6Address) -> None:
        refused = neighbourhood().refusal(str(address)) is not None
        assert refused or (address.is_global and not address.is_multicast) or address.sixtofour is not None


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0", "0.0.0.0"),  # noqa: S104 - nothing is bound here
        ("localhost", "127.0.0.1"),
        ("LOCALHOST.", "127.0.0.1"),
        ("a.localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", str(ip_address("::ffff:127.0.0.1"))),
        ("example.com", None),
        ("notlocalhost", None),
        ("localhost.example.com", None),
    ],
)
def test_hosts_that_are_addresses_in_any_spelling(host: str, address: str | None) -> None:
    assert literal(host) == address


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "2130706433", "0x7f.1", "0"),
        *("user:pw@127.0.0.1", "example.com@127.0.0.1", "127\u30020\uff0e0.1", "127.0.0.1."),
    ],
)
def test_a_url_that_names_an_address_inside_is_refused_when_it_is_read(host: str) -> None:
    with pytest.raises(ConfigError, match="if the receiver is yours, say allow_private=on") as error:
        HttpPublisher(f"http://{host}/hook")
    assert "pw" not in str(error.value)
    HttpPublisher(f"http://{host}/hook?allow_private=on")


def test_digits_that_only_look_like_digits_are_no_host() -> None:
    with pytest.raises(ConfigError, match="not a valid URL"):
        HttpPublisher("http://\uff11\uff12\uff17.0.0.1/")


class TestAtTheConnection:
    """Names whose meaning is decided here, instead of by the system's resolver."""

    @pytest.fixture
    def names(self, monkeypatch: pytest.MonkeyPatch) -> Answers:
        answers: Answers = {}

        def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
            return [(0, 0, 0, "", (address, port)) for address in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return answers

    async def refused(self, url: str) -> str:
        publisher = HttpPublisher(url)
        with pytest.raises(Retryable) as failure:
            await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
        assert failure.value.unavailable, "no message of this destination can go"
        return str(failure.value)

    async def test_a_name_for_an_address_inside(self, receiver: HttpReceiver, names: Answers) -> None:
        names["hook.example.com"] = [["127.0.0.1"]]
        text = await self.refused(f"http://hook.example.com:{receiver.port}/hook")
        assert "127.0.0.1 is a loopback address; if the receiver is yours, say allow_private=on" in text
        assert receiver.connections == 0

    async def test_one_address_inside_among_others(self, receiver: HttpReceiver, names: Answers) -> None:
        names["hook.example.com"] = [["8.8.8.8", "127.0.0.1"]]
        assert "loopback" in await self.refused(f"http://hook.example.com:{receiver.port}/hook")
        assert receiver.connections == 0

    async def test_a_name_that_changes_its_meaning(
        self, receiver: HttpReceiver, names: Answers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The first look-up says something harmless, every later one the metadata service's stand-in.
        names["hook.example.com"] = [["8.8.8.8"], ["127.0.0.1"]]
        tried: list[str] = []

        async def create_connection(self: Any, protocol: Any, host: str, *_: Any, **__: Any) -> Any:
            tried.append(host)
            raise ConnectionRefusedError(111, "no way out of this test")

        monkeypatch.setattr("asyncio.base_events.BaseEventLoop.create_connection", create_connection)
        url = f"http://hook.example.com:{receiver.port}/hook"
        assert "no way out" in await self.refused(url)
        assert tried == ["8.8.8.8"], "the address that was judged, and no name that could be looked up again"
        assert "loopback" in await self.refused(url)
        assert tried == ["8.8.8.8"]

    async def test_an_allowed_network_is_reached_by_name(self, receiver: HttpReceiver, names: Answers) -> None:
        names["hook.internal"] = [["127.0.0.1"]]
        publisher = HttpPublisher(f"http://hook.internal:{receiver.port}/hook?allow_private=127.0.0.0/8")
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
        assert receiver.requests[0].header("Host") == f"hook.internal:{receiver.port}"

    async def test_an_address_that_does_not_answer_leaves_time_for_the_next(
        self, receiver: HttpReceiver, names: Answers
    ) -> None:
        names["hook.internal"] = [["127.0.0.2", "::1", "127.0.0.1"]]
        publisher = HttpPublisher(f"http://hook.internal:{receiver.port}/hook?allow_private=on&timeout=3")
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()

    async def test_tls_checks_the_name_and_not_the_address(self, names: Answers, tmp_path: Any) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("hook.internal").configure_cert(context)
        secure = HttpReceiver(context)
        await secure.start()
        names["hook.internal"] = names["other.internal"] = [["127.0.0.1"]]
        rest = f":{secure.port}/hook?allow_private=on&ca={tmp_path / 'ca.pem'}"
        publisher = HttpPublisher(f"https://hook.internal{rest}")
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
        assert "Hostname mismatch" in await self.refused(f"https://other.internal{rest}")
        await secure.stop()
        assert len(secure.requests) == 1

    async def test_a_name_that_does_not_exist(self, names: Answers) -> None:
        assert "cannot be looked up" in await self.refused("http://no-such-host.invalid/?timeout=5")


class TestResolverThatHangs:
    @pytest.fixture
    def release(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        self.lookups = 0
        release = threading.Event()

        def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
            self.lookups += 1
            release.wait(30)
            return [(0, 0, 0, "", ("127.0.0.1", 0))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield release
        release.set()

    async def test_ends_by_the_deadline_with_one_thread_for_all(self, release: threading.Event) -> None:
        publisher = HttpPublisher("http://hook.example.com/?timeout=0.4")
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(Retryable, match="was not looked up within") as failure:
                await publisher.publish(sample_message(), sample_delivery())
            assert time.monotonic() - started < 0.4 + 0.5
            assert failure.value.unavailable
        assert self.lookups == 1
        assert [each.name for each in threading.enumerate()].count("lookup-hook.example.com") == 1
        await publisher.close()

    async def test_answers_at_last(self, release: threading.Event, receiver: HttpReceiver) -> None:
        publisher = HttpPublisher(f"http://hook.example.com:{receiver.port}/?timeout=0.2&allow_private=on")
        with pytest.raises(Retryable):
            await publisher.publish(sample_message(), sample_delivery())
        release.set()
        await publisher.publish(sample_message(), sample_delivery())
        await publisher.close()
        assert len(receiver.requests) == 1
