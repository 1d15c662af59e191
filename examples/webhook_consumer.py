"""Webhooks with Python's own HTTP server: each message with its effect once. Any framework looks like this."""

import logging
import os
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from fencepost import Inbox
from fencepost.consumers import Consumer, Received
from fencepost.consumers.http import received, status_after

DATABASE = os.environ["DATABASE_URL"]
PORT = int(os.environ["PORT"])
SIGNED = Webhook(os.environ["WEBHOOK_SECRET"])
log = logging.getLogger("billing")

# A connection for each message keeps this short: have a pool, and pass `pool.connection`.
consumer = Consumer(Inbox("billing"), partial(psycopg.connect, DATABASE))


@consumer.handler
def bill(received: Received, connection: psycopg.Connection) -> None:
    connection.execute(
        "INSERT INTO invoice (message_id, order_id) VALUES (%s, %s)",
        [received.message_id, received.json()["id"]],
    )


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status_of(body))  # the acknowledgement: after the commit
        self.send_header("Content-Length", "0")
        self.end_headers()

    def status_of(self, body: bytes) -> int:
        try:
            SIGNED.verify(body, dict(self.headers), json_parse=False)
            bill(received(self.headers, body))
        except (WebhookVerificationError, UnicodeDecodeError):
            return 403
        except Exception as error:
            log.exception("not done")
            return status_after(error)
        return status_after(None)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", PORT), Hook).serve_forever()
