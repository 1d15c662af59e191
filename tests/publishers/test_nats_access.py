"""Into a real NATS server: passwords and tokens from files and the environment, nkeys, credentials files, TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped] # nkeys ships no types
import pytest
import trustme

from fencepost.errors import ConfigError, Retryable
from fencepost.publishers.nats.publisher import NatsPublisher
from fencepost.testing import sample_delivery, sample_message
from tests.publishers.in_use import in_use
from tests.publishers.nats_server import NatsServer

Start = Callable[..., NatsServer]
PAST_THE_LOGIN = "no JetStream stream listens"


@pytest.fixture
def start_with(start_nats: Start, tmp_path: Path) -> Callable[[str], NatsServer]:
    def start(config: str) -> NatsServer:
        path = tmp_path / "server.conf"
        path.write_text(config)
        return start_nats("-c", str(path))

    return start


async def said(server: NatsServer, query: str, *, host: str = "127.0.0.1") -> str:
    """Return what a publish is told; past the login that is that there is no stream."""
    await asyncio.to_thread(server.wait_until_it_listens)
    address = f"nats://{host}:{server.port}?timeout=5{query}"
    # Where TLS has refused the server, nats-py's own close hangs, and the connection is dropped after a second.
    async with in_use(NatsPublisher(address), closes_in=1.5) as publisher:
        with pytest.raises(Retryable) as failure:
            await publisher.publish(sample_message(), sample_delivery())
    text = str(failure.value)
    assert failure.value.unavailable is (PAST_THE_LOGIN not in text)
    return text


async def test_user_and_password_from_a_file_are_read_at_each_connection(
    start_with: Callable[[str], NatsServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_with('authorization { user: "alice", password: "right-one" }')
    secret = tmp_path / "password"
    secret.write_text("wrong-one\n")
    monkeypatch.setenv("NATS_USER", "alice")
    publisher = NatsPublisher(
        f"nats://127.0.0.1:{server.port}?timeout=5&user_env=NATS_USER&password_file={secret}"
    )
    refused = await said(server, f"&user_env=NATS_USER&password_file={secret}")
    assert "Authorization" in refused
    assert "wrong-one" not in refused
    with pytest.raises(Retryable, match="Authorization"):
        await publisher.publish(sample_message(), sample_delivery())
    secret.write_text("right-one\n")
    with pytest.raises(Retryable, match=PAST_THE_LOGIN):
        await publisher.publish(sample_message(), sample_delivery())
    await publisher.close()


async def test_a_token_from_the_environment(start_nats: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_nats("--auth", "s3cret-token")
    monkeypatch.setenv("NATS_TOKEN", "s3cret-token")
    assert PAST_THE_LOGIN in await said(server, "&token_env=NATS_TOKEN")
    monkeypatch.setenv("NATS_TOKEN", "other-token")
    assert "Authorization" in await said(server, "&token_env=NATS_TOKEN")


async def test_a_user_in_the_url_with_its_password_elsewhere_is_no_token(
    start_with: Callable[[str], NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_with('authorization { user: "alice", password: "right-one" }')
    monkeypatch.setenv("NATS_PASSWORD", "right-one")
    assert PAST_THE_LOGIN in await said(server, "&password_env=NATS_PASSWORD", host="alice@127.0.0.1")


def key_pair(prefix: int) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


async def test_an_nkey(start_with: Callable[[str], NatsServer], tmp_path: Path) -> None:
    pair, other = key_pair(nkeys.PREFIX_BYTE_USER), key_pair(nkeys.PREFIX_BYTE_USER)
    server = start_with(f"authorization {{ users = [ {{ nkey: {pair.public_key.decode()} }} ] }}")
    for name, one in (("right.nk", pair), ("wrong.nk", other)):
        (tmp_path / name).write_bytes(bytes(one.seed) + b"\n")
    assert PAST_THE_LOGIN in await said(server, f"&nkey={tmp_path / 'right.nk'}")
    assert "Authorization" in await said(server, f"&nkey={tmp_path / 'wrong.nk'}")
    (tmp_path / "right.nk").write_text("SUBROKENSEED")
    broken = await said(server, f"&nkey={tmp_path / 'right.nk'}")
    assert "cannot connect" in broken
    assert "SUBROKENSEED" not in broken


def token(kind: str, issuer: Any, subject: Any, **claims: Any) -> str:
    """Return a JWT as NATS has them, signed by the issuer's nkey."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = {
        "jti": "x",
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": kind,
        "nats": {"type": kind, "version": 2, **claims},
    }
    signed = f"{head}.{part(json.dumps(body).encode())}"
    return f"{signed}.{part(issuer.sign(signed.encode()))}"


async def test_a_credentials_file(start_with: Callable[[str], NatsServer], tmp_path: Path) -> None:
    operator, system, account, user = (
        key_pair(prefix)
        for prefix in (
            *(nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT),
            *(nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER),
        )
    )
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    known = "\n".join(
        f"{one.public_key.decode()}: {token('account', operator, one, limits=unlimited)}"
        for one in (system, account)
    )
    server = start_with(
        f"operator: {token('operator', operator, operator)}\nsystem_account: {system.public_key.decode()}\n"
        f"resolver: MEMORY\nresolver_preload: {{\n{known}\n}}"
    )
    login = token("user", account, user, subs=-1, data=-1, payload=-1)
    (tmp_path / "user.creds").write_text(
        f"-----BEGIN NATS USER JWT-----\n{login}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{bytes(user.seed).decode()}\n------END USER NKEY SEED------\n"
    )
    assert PAST_THE_LOGIN in await said(server, f"&creds={tmp_path / 'user.creds'}")
    assert "Authorization" in await said(server, "")


class TestTls:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> trustme.CA:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        server = authority.issue_cert("localhost")
        server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
        client = authority.issue_cert("fencepost@example.com")
        client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
        return authority

    @staticmethod
    def config(tmp_path: Path, extra: str = "") -> str:
        pem, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
        return f'tls {{ cert_file: "{pem}", key_file: "{pem}", ca_file: "{ca}", {extra} }}'

    @pytest.mark.parametrize(("extra", "tls"), [("", "on"), ("handshake_first: true", "first")])
    async def test_with_its_authority_it_delivers(
        self,
        start_with: Callable[[str], NatsServer],
        authority: trustme.CA,
        tmp_path: Path,
        extra: str,
        tls: str,
    ) -> None:
        server = start_with(self.config(tmp_path, extra))
        ca = tmp_path / "ca.pem"
        assert PAST_THE_LOGIN in await said(server, f"&tls={tls}&ca={ca}", host="localhost")
        assert "CERTIFICATE_VERIFY_FAILED" in await said(server, f"&tls={tls}", host="localhost")
        assert "IP address mismatch" in await said(server, f"&tls={tls}&ca={ca}", host="127.0.0.1")

    async def test_a_client_certificate(
        self, start_with: Callable[[str], NatsServer], authority: trustme.CA, tmp_path: Path
    ) -> None:
        server = start_with(self.config(tmp_path, "verify: true"))
        files = f"&ca={tmp_path / 'ca.pem'}&cert={tmp_path / 'client.pem'}"
        assert PAST_THE_LOGIN in await said(server, files, host="localhost")
        assert "cannot connect" in await said(server, f"&ca={tmp_path / 'ca.pem'}", host="localhost")

    async def test_without_tls_on_the_server_nothing_is_sent_to_it(
        self, start_nats: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = start_nats("-DV")
        monkeypatch.setenv("NATS_TOKEN", "s3cret-token")
        assert "offers no TLS, which ?tls= asks for" in await said(server, "&tls=on&token_env=NATS_TOKEN")
        assert "CONNECT" not in server.log(), "not even the login"


def test_what_cannot_work_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = tmp_path / "user.nk"
    seed.write_text("SU…")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install nkeys"):
        NatsPublisher(f"nats://127.0.0.1?nkey={seed}")
    with pytest.raises(ConfigError, match="choose one of"):
        NatsPublisher(f"nats://token@127.0.0.1?nkey={seed}")
    with pytest.raises(ConfigError, match="cannot be read"):
        NatsPublisher(f"nats://127.0.0.1?nkey={seed}.gone")


def test_tls_contexts_check_names() -> None:
    publisher = NatsPublisher("nats://127.0.0.1?tls=on")
    context: Any = publisher._access._context
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
