"""An HTTP server in front of moto that answers in moto's place when it is told to: throttled, refused, in part."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.acceptor import Acceptor

Answer = tuple[int, Mapping[str, Any] | bytes]
"""Status and body."""
Answering = Callable[[str, dict[str, Any]], Answer | None]
"""From an operation and its parameters to an answer; None lets moto answer."""


def error(status: int, code: str, text: str = "no") -> Answer:
    return status, {"__type": f"com.amazonaws.sqs#{code}", "message": text}


class AwsFront:
    """Speaks the JSON protocol of SQS, one request a connection."""

    def __init__(self, port: int) -> None:
        self._moto = port
        self._acceptor = Acceptor(self._serve)
        self.answering: Answering = lambda operation, parameters: None
        self.failing: dict[int, tuple[str, bool]] = {}
        """Id of an entry of any batch to its error code and whether the sender is at fault; moto never sees it."""
        self.requests: Counter[str] = Counter()
        self.keys: list[str] = []
        """The access key of each request."""

    @property
    def port(self) -> int:
        return self._acceptor.port

    async def __aenter__(self) -> AwsFront:
        await self._acceptor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._acceptor.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        self.requests[operation] += 1
        self.keys.append(headers.get("authorization", "").partition("Credential=")[2].partition("/")[0])
        answer = await self._answer(operation, json.loads(body), headers)
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _answer(self, operation: str, parameters: dict[str, Any], headers: Mapping[str, str]) -> bytes:
        own = self.answering(operation, parameters)
        if own is not None:
            return _http(*own)
        failed = []
        if operation == "SendMessageBatch" and self.failing:
            entries = parameters["Entries"]
            parameters["Entries"] = [one for one in entries if int(one["Id"]) not in self.failing]
            for one in entries:
                if int(one["Id"]) in self.failing:
                    code, is_fault = self.failing[int(one["Id"])]
                    failed.append({"Id": one["Id"], "Code": code, "SenderFault": is_fault, "Message": "so it is"})
            if not parameters["Entries"]:
                return _http(200, {"Successful": [], "Failed": failed})
        status, answer = await self._forward(parameters, headers)
        if failed:
            answer["Failed"] = failed
        return _http(status, answer)

    async def _forward(self, parameters: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        body = json.dumps(parameters).encode()
        kept = {name: value for name, value in headers.items() if name not in ("content-length", "connection", "")}
        kept |= {"content-length": str(len(body)), "connection": "close"}
        reader, writer = await asyncio.open_connection("127.0.0.1", self._moto)
        head = "POST / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in kept.items()) + "\r\n"
        writer.write(head.encode("latin-1") + body)
        answer = await reader.read()
        writer.close()
        status, _, text = answer.partition(b"\r\n\r\n")
        return int(status.split()[1]), json.loads(text)


def _http(status: int, body: Mapping[str, Any] | bytes) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {len(text)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + text
