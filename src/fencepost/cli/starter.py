"""The fencepost.toml that ``fencepost init`` writes: every setting, commented out, with its default."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fencepost.cli.settings import SETTINGS, Setting
from fencepost.cli.settings.addresses import shown_store
from fencepost.config import WORKER_PREFIX, Settings
from fencepost.publishers.address import MASK

_HEAD = """\
# fencepost: settings in this file, over them FENCEPOST_* variables, over those the command's flags.
# `fencepost config show` says which value holds and where it comes from.
"""

_WORKER = """\
# For `fencepost work`, which runs jobs. It also goes by owner, poll_interval, notify and listen_store above.
[worker]"""

_TARGETS = """\
# Where messages go: URLs (stdout:, https://…, kafka://…, nats://…) or python:package.module:object. Each
# destination is a queue, with its own order, retries, pause and breaker.
[destinations]
# hook = "https://example.com/hooks/orders"
# mailer = { url = "https://example.com/mail", timeout = 5 }

# What goes where: shell patterns over the event type, the first match wins. An event gets a message for each
# destination that is named; a URL publishes it where it stands.
[routes]
# "order.*" = ["hook", "mailer"]
"*" = "stdout:"
"""


def starter_file(settings: Settings) -> str:
    """Return the text of a configuration file that says what these settings say about the store."""
    return "\n".join([_HEAD, *_lines(settings), _WORKER, *_lines(settings, of_worker=True), _TARGETS])


def _lines(settings: Settings, *, of_worker: bool = False) -> Iterator[str]:
    for setting in SETTINGS:
        if setting.name in ("destinations", "routes") or setting.is_of_worker != of_worker:
            continue
        yield f"# {setting.help[0].upper()}{setting.help[1:]}."
        yield _line(setting, settings) + "\n"


def _line(setting: Setting, settings: Settings) -> str:
    value = settings.value(setting.name)
    if setting.name == "store":
        return _store_line(settings.store)
    if setting.name in ("schema", "table") and value != setting.default:
        return f"{setting.name} = {_quoted(value)}"
    return f"# {setting.name.removeprefix(WORKER_PREFIX)} = {_example(setting)}"


def _store_line(store: str | None) -> str:
    if store is None:
        return '# store = "postgresql://USER@HOST/DATABASE"'
    shown = shown_store(store)
    if shown == store:
        return f"store = {_quoted(store)}"
    # A password does not belong in a file that is likely to be committed.
    without = shown.replace(f":{MASK}@", "@")
    return f"# Keep a password out of this file: set FENCEPOST_STORE.\n# store = {_quoted(without)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _example(setting: Setting) -> str:
    default = setting.default
    if default is None:
        return _UNSET_EXAMPLES[setting.name]
    if isinstance(default, bool | int):
        return setting.kind.show(default)
    return _quoted(setting.kind.show(default))


_UNSET_EXAMPLES = {
    "owner": '"worker-1"',
    "queues": '["default"]',
    "concurrency": "100",
    "heartbeat": '"20s"',
    "max_age": '"7d"',
    "listen_store": '"postgresql://USER@HOST/DATABASE"',
    "retention": '"30d"',
    "worker_queues": '["urgent", "default"]',
    "worker_retention": '"30d"',
}
