"""What SQS and SNS share: the client, whole batches of ten, and the answer read entry by entry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from fencepost.core.records import Message
from fencepost.errors import ConfigError, Permanent, Retryable
from fencepost.publishers.address import Address, parse_address
from fencepost.publishers.aws import failures as aws_failures
from fencepost.publishers.aws.address import OPTIONS, SECRETS, endpoint_of, place_of, secrets_of
from fencepost.publishers.aws.entry import Entry, group_id, make_entry, packed
from fencepost.publishers.base import Delivery, own_copy
from fencepost.publishers.batching import Batch, BatchPublisher, in_rounds
from fencepost.publishers.connector import Connector, Talks
from fencepost.publishers.credentials import redacted, tls_context
from fencepost.publishers.envelope import Envelope

DEFAULT_TIMEOUT = 8.0
LARGEST = 1_048_576
"""The most that SQS and SNS take, a message and a whole batch alike (their API documentation)."""
MAX_REQUESTS = 10
"""At once, for each publisher."""

_LOADERS: dict[str, Any] = {}
"""Service to what botocore has read about it: several MB, the same for every publisher of the process."""


@dataclass(slots=True, eq=False)
class AwsLink:
    """A client, which has connections of its own, and what it publishes to."""

    client: Any
    target: str
    stack: AsyncExitStack
    busy: int = 0
    retired: bool = False

    @property
    def usable(self) -> bool:
        return not self.retired

    async def end(self) -> None:
        await self.stack.aclose()

    def abort(self) -> None:
        self.retired = True  # and `end` closes the connections without waiting for anything


class AwsPublisher(BatchPublisher):
    """The base of `SqsPublisher` and `SnsPublisher`.

    Raises:
        ConfigError: aiobotocore is not installed, or the URL cannot work.
    """

    service: ClassVar[str]
    noun: ClassVar[str]
    body_name: ClassVar[str]
    default_max_bytes: ClassVar[int]
    name_pattern: ClassVar[str]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import aiobotocore.config  # type: ignore[import-untyped]  # has no types
            import aiobotocore.session  # type: ignore[import-untyped]  # has no types
            import aiohttp
            import botocore.exceptions  # type: ignore[import-untyped]  # has no types
            import botocore.parsers  # type: ignore[import-untyped]  # has no types
        except ImportError:
            raise ConfigError(
                f"{self.service} destinations need aiobotocore: pip install 'fencepost[aws]'"
            ) from None
        _quiet("botocore", "aiobotocore")
        self._aws: Any = aiobotocore
        self._errors: Any = botocore.exceptions
        self._understood = (
            *(botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError),
            *(botocore.parsers.ResponseParserError, aiohttp.ClientError, OSError),
            # Its parsers, when something else answers: the last one where lists are nested too deeply.
            *(AttributeError, KeyError, TypeError, ValueError, RecursionError),
        )
        address = parse_address(url, options=OPTIONS)
        self._shown = address.display
        self.place = place_of(address, self.service, self.name_pattern)
        self._what = f"{self.noun} {self.place.name!r} in {self.place.region}"
        self._timeout = address.seconds("timeout", DEFAULT_TIMEOUT)
        self._max_bytes = address.count("max_bytes", self.default_max_bytes, most=LARGEST)
        self._envelope = Envelope(address, prefix=None)
        self._secrets = secrets_of(address)
        self._profile = address.options.get("profile")
        self._client_options = self._options_of_the_client(address)
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._talks = Talks()
        self._connector = Connector(self._shown, self._timeout, self._connect)

    async def open(self) -> None:
        """Load what botocore knows of the service; nothing is sent."""
        self._connector.open()
        with contextlib.suppress(self._errors.BotoCoreError):  # the first publish will say it
            await self._load()

    async def publish_batch(
        self, messages: Sequence[Message], deliveries: Sequence[Delivery]
    ) -> list[Exception | None]:
        """Publish in requests of ten, several at once, and return an outcome for each.

        A request may be taken in part, so a key has one message in a request, and the next one after the answer.

        Outcomes:
            None: AWS answered with the message's id, also for a repeat that FIFO drops.
            Retryable: no connection, no answer before the deadline (AWS may have it all the same), throttled,
                refused, or no such queue or topic; the text says what to do.
            Permanent: larger than ``max_bytes`` or than AWS accepts, or a header that cannot be sent.
        """
        batch = Batch(messages, deliveries, self._timeout)
        return await in_rounds(batch, lambda at: self._entry(at, messages[at], deliveries[at]), self._deliver)

    async def close(self) -> None:
        """Close the connections; what still waits for an answer fails as retryable."""
        await self._talks.end()
        await self._connector.close()

    @abstractmethod
    async def _find(self, client: Any, session: Any) -> str:
        """Return the queue's URL or the topic's ARN."""

    @abstractmethod
    async def _send(self, client: Any, target: str, entries: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Send one request and return the answer."""

    def _entry(self, place: int, message: Message, delivery: Delivery) -> Entry:
        fifo: dict[str, str] = {}
        if self.place.is_fifo:
            key = message.ordering_key
            fifo["MessageGroupId"] = message.message_id_text if key is None else group_id(key)
            fifo["MessageDeduplicationId"] = message.message_id_text
        outgoing = self._envelope.wrap(message, delivery)
        return make_entry(place, outgoing, body_name=self.body_name, max_bytes=self._max_bytes, fifo=fifo)

    async def _deliver(self, entries: Sequence[Entry], deadline: float) -> None:
        """Send entries, each to its outcome."""
        requests = packed(entries, self._max_bytes)
        await asyncio.gather(*(self._request(request, deadline) for request in requests))

    async def _request(self, entries: list[Entry], deadline: float) -> None:
        try:
            await self._answered(entries, deadline)
        except Permanent as failure:
            if len(entries) == 1:
                entries[0].outcome = failure
            else:  # it is about one of them
                await asyncio.gather(*(self._request([entry], deadline) for entry in entries))
        except Retryable as failure:
            for entry in entries:
                entry.outcome = own_copy(failure)

    async def _answered(self, entries: list[Entry], deadline: float) -> None:
        """Send one request, and note what failed of it.

        Raises:
            Permanent, Retryable: all of it failed.
        """
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._slots.acquire()
        except TimeoutError:
            raise Retryable(f"{self._shown}: not sent: no free connection before the deadline") from None
        try:
            self._read(entries, await self._answer(entries, deadline))
        finally:
            self._slots.release()

    async def _answer(self, entries: list[Entry], deadline: float) -> Any:
        link = await self._connector.get(deadline)
        task = self._talks.start(self._send(link.client, link.target, [dict(one.parameters) for one in entries]))
        link.busy += 1
        try:
            return await self._in_time(task, link, deadline)
        finally:
            task.cancel()
            link.busy -= 1
            if link.retired and not link.busy:
                self._connector.discard(link)

    async def _in_time(self, task: asyncio.Task[Any], link: AwsLink, deadline: float) -> Any:
        left = max(0.0, deadline - time.monotonic())
        await asyncio.wait({task}, timeout=left)
        if not task.done():
            # A dead path, perhaps: new connections will tell. A message with little lease left tells nothing.
            link.retired |= left >= self._timeout / 2
            raise Retryable(f"{self._shown}: no answer before the deadline")
        if task.cancelled():
            raise Retryable(f"{self._shown}: the publisher was closed")
        try:
            return task.result()
        except self._understood as error:
            failure = self._classified(error)
            if isinstance(failure, Retryable) and failure.unavailable and failure.delay is None:
                link.retired = True  # credentials are read again, and the queue is looked up again
            raise failure from None

    def _read(self, entries: list[Entry], answer: Any) -> None:
        try:
            done = {str(one["Id"]) for one in answer.get("Successful") or ()}
            failed = {str(one["Id"]): one for one in answer.get("Failed") or ()}
        except (AttributeError, KeyError, TypeError):
            done, failed = set(), {}
        for entry in entries:
            name = str(entry.place)
            if name in failed:
                said = failed[name] | {"Message": self._safe(str(failed[name].get("Message", "")))}
                entry.outcome = aws_failures.of_entry(self._shown, self._what, said)
            elif name not in done:
                entry.outcome = Retryable(f"{self._shown}: the answer says nothing about this message")

    def _classified(self, error: Exception) -> Permanent | Retryable:
        errors = self._errors
        if isinstance(error, errors.ClientError):
            said = error.response.get("Error", {})
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
            return aws_failures.failure(
                self._shown,
                self._what,
                str(said.get("Code", "")),
                self._safe(str(said.get("Message", ""))),
                status,
            )
        text = f"{self._shown}: {self._safe(str(error) or type(error).__name__)}"
        if isinstance(error, errors.NoCredentialsError):
            text += " (set them as the AWS command line has them, or ?profile=, ?access_key_env= and so on)"
        if isinstance(error, (errors.HTTPClientError, errors.EndpointConnectionError)):
            # Also EndpointConnectionError may mean a connection that broke after the request was sent.
            return Retryable(text, unavailable=_never_connected(error))
        # What is left of botocore's own errors is about credentials, profiles and endpoints.
        is_ours = isinstance(error, errors.BotoCoreError) and not isinstance(error, errors.ValidationError)
        return Retryable(text, unavailable=is_ours)

    def _safe(self, text: str) -> str:
        with contextlib.suppress(Retryable):
            text = redacted(text, [secret.read() for secret in self._secrets.values()])
        return " ".join(text.split())[:500]

    async def _connect(self) -> AwsLink:
        stack = AsyncExitStack()
        try:
            loader = await self._load()
            # A session of its own: it would remember credentials that were exchanged since.
            session = self._aws.session.AioSession(profile=self._profile)
            session.register_component("data_loader", loader)
            access_key, secret_key, token = (self._secrets[name].read() for name in SECRETS)
            client = await stack.enter_async_context(
                session.create_client(
                    self.service,
                    aws_access_key_id=access_key,
                    aws_secret_access_key=secret_key,
                    aws_session_token=token,
                    **self._client_options,
                )
            )
            return AwsLink(client, await self._find(client, session), stack)
        except BaseException as error:
            await stack.aclose()
            if not isinstance(error, self._understood):
                raise
            failure = self._classified(error)
            # Nothing is wrong with any message before it is sent.
            raise Retryable(str(failure), unavailable=True) from None

    async def _load(self) -> Any:
        """Let botocore read its descriptions of the service from the disk, which takes a while, in a thread."""
        if self.service not in _LOADERS:
            _LOADERS[self.service] = await asyncio.to_thread(lambda: asyncio.run(self._loaded()))
        return _LOADERS[self.service]

    async def _loaded(self) -> Any:
        session = self._aws.session.AioSession()
        # With these keys it does not look for credentials anywhere; the client sends nothing.
        keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
        async with session.create_client(self.service, **keys, **self._client_options):
            return session.get_component("data_loader")

    def _options_of_the_client(self, address: Address) -> dict[str, Any]:
        options: dict[str, Any] = {
            "region_name": self.place.region,
            "endpoint_url": endpoint_of(address),
            "config": self._aws.config.AioConfig(
                connect_timeout=self._timeout,
                read_timeout=self._timeout,
                retries={"total_max_attempts": 1},  # the dispatcher repeats, in its own order
                max_pool_connections=MAX_REQUESTS,
                user_agent_extra="fencepost",
            ),
        }
        if "ca" in address.options:
            tls_context(address)  # says what is wrong with the file
            options["verify"] = address.options["ca"]
        return options


def _quiet(*names: str) -> None:
    """Keep out of a log of everything what these libraries put there: session tokens and payloads."""
    for logger in map(logging.getLogger, names):
        if logger.level == logging.NOTSET:  # whoever asks for it by name gets it
            logger.setLevel(logging.INFO)


def _never_connected(error: Any) -> bool:
    """Tell whether the request cannot have been sent."""
    cause = type(error.kwargs.get("error")).__name__ if hasattr(error, "kwargs") else ""
    return cause.startswith(("ClientConnector", "ClientProxy", "ClientHttpProxy", "ConnectionTimeout"))
