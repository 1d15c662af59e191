"""The file, the environment and the flags, each over the one before."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from fencepost.cli.redaction import Redactor
from fencepost.cli.settings import BY_NAME, SETTINGS, InvalidSettings, load_settings
from fencepost.config import (
    WORKER_PREFIX,
    WORKER_SHARED,
    ConfiguredRoute,
    DispatcherSettings,
    Settings,
    Source,
    WorkerSettings,
)

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "fencepost.toml") -> None:
    folder.joinpath(name).write_text(text, "utf-8")


def problems(flags: dict[str, object] | None = None, **environ: str) -> str:
    with pytest.raises(InvalidSettings) as caught:
        load_settings(flags, environ=environ)
    return str(caught.value)


def test_the_defaults_are_the_dispatchers_own() -> None:
    settings = load_settings(environ={})
    assert settings.dispatcher == DispatcherSettings(owner=settings.dispatcher.owner)
    assert settings == dataclasses.replace(Settings(), dispatcher=settings.dispatcher)
    assert {settings.source(each.name) for each in SETTINGS} == {Source("default")}
    for setting in SETTINGS:
        assert setting.name == "owner" or settings.value(setting.name) == setting.default


def test_every_setting_of_a_dispatcher_is_in_the_table() -> None:
    assert {each.name for each in dataclasses.fields(DispatcherSettings)} <= set(BY_NAME)


def test_every_setting_of_a_worker_is_in_the_table_once() -> None:
    names = {each.name for each in dataclasses.fields(WorkerSettings)}
    own = {name.removeprefix(WORKER_PREFIX) for name in BY_NAME if name.startswith(WORKER_PREFIX)}
    assert own | WORKER_SHARED == names
    assert not own & WORKER_SHARED
    assert load_settings(environ={}).worker == WorkerSettings()


def test_what_both_share_is_said_once_and_wrong_once(folder: Path) -> None:
    write(folder, 'poll_interval = "0s"\ngrace = "2d"\n[worker]\nconcurrency = 0\n')
    told = problems().split("; ")
    assert [each.partition(":")[0] for each in told] == [
        "poll_interval (file fencepost.toml)",
        "grace (file fencepost.toml)",
        "worker_concurrency (file fencepost.toml)",
    ]


def test_each_source_is_over_the_one_before(folder: Path) -> None:
    write(folder, 'batch = 1\nconcurrency = 2\nlease = "30s"\n')
    settings = load_settings(
        {"lease": "50s", "grace": None, "queues": ()},
        environ={"FENCEPOST_CONCURRENCY": "20", "FENCEPOST_LEASE": "40s"},
    )
    assert (settings.dispatcher.batch, settings.source("batch")) == (1, Source("file", "fencepost.toml"))
    assert settings.dispatcher.concurrency == 20
    assert str(settings.source("concurrency")) == "environment FENCEPOST_CONCURRENCY"
    assert settings.dispatcher.lease == timedelta(seconds=50)
    assert str(settings.source("lease")) == "flag --lease"
    assert str(settings.source("grace")) == "default"


def test_everything_can_be_said_in_the_file(folder: Path) -> None:
    write(
        folder,
        """
        store = "postgresql://app@db/shop"
        schema = "events"
        table = "out"
        log_level = "warning"
        log_json = true
        owner = "w1"
        queues = ["a", "b,c"]
        batch = 7
        concurrency = 8
        lease = 30
        heartbeat = 2.5
        publish_timeout = "5s"
        max_attempts = 3
        max_age = "7d"
        backoff_base = "100ms"
        backoff_cap = "1m"
        poll_interval = "250ms"
        notify = false
        listen_store = "postgresql://app@direct/shop"
        retention = "30d"
        ledger_retention = "90d"
        grace = "1m"
        on_unexpected = "stop"
        breaker_failures = 0
        breaker_cap = "10s"
        outage_budget = "12h"
        [worker]
        queues = ["urgent", "default"]
        concurrency = 3
        retention = "14d"
        grace = "5m"
        on_unexpected = "stop"
        [destinations]
        events = "kafka://k1:9092/?topic=shop.{event_type}"
        plain.url = "stdout:"
        [destinations.hook]
        url = "https://example.com/hook"
        timeout = 5
        allow_private = true
        secret_env = "HOOK &SECRET"
        rdkafka.linger.ms = 0.5
        [routes]
        "order.*" = ["events", "hook"]
        "mail.*" = "plain"
        "audit.*" = "https://example.com/hook"
        "*" = "python:shop.events:publish"
        """,
    )
    settings = load_settings(environ={})
    assert {settings.source(each.name).kind for each in SETTINGS} == {"file"}
    assert settings.destinations == (
        ("events", "kafka://k1:9092/?topic=shop.{event_type}"),
        ("plain", "stdout:"),
        (
            "hook",
            "https://example.com/hook?timeout=5&allow_private=on&secret_env=HOOK%20%26SECRET&rdkafka.linger.ms=0.5",
        ),
    )
    assert settings.routes == (
        ConfiguredRoute("order.*", ("events", "hook")),
        ConfiguredRoute("mail.*", ("plain",)),
        ConfiguredRoute("audit.*", "https://example.com/hook"),
        ConfiguredRoute("*", "python:shop.events:publish"),
    )
    assert settings.dispatcher.queues == ("a", "b,c")
    assert settings.dispatcher.heartbeat == timedelta(seconds=2.5)
    assert settings.log_json is True
    assert settings.dispatcher.listen_store == "postgresql://app@direct/shop"
    assert settings.dispatcher.retention == timedelta(days=30)
    assert settings.worker == WorkerSettings(
        owner="w1",
        poll_interval=timedelta(milliseconds=250),
        notify=False,
        listen_store="postgresql://app@direct/shop",
        ledger_retention=settings.dispatcher.ledger_retention,
        queues=("urgent", "default"),
        concurrency=3,
        retention=timedelta(days=14),
        grace=timedelta(minutes=5),
        on_unexpected="stop",
    )


def test_everything_can_be_said_in_the_environment() -> None:
    texts = {
        "store": "postgresql://app@db/shop",
        "listen_store": "postgresql://app@direct/shop",
        "destinations": "events=python:shop.events:publish hook=https://h/?a=b",
        "routes": "order.*=https://example.com/hook\nmail.*=hook,events *=events",
        "queues": "a, b",
        "log_level": "debug",
        "on_unexpected": "stop",
        "worker_queues": "a, b",
        "worker_on_unexpected": "stop",
        "worker_retention": "none",
        "notify": "off",
        "log_json": "YES",
        "max_age": "none",
        "heartbeat": "none",
        "concurrency": "5",
        "owner": "w1",
        "schema": "events",
        "table": "out",
    }
    environ = {
        each.variable: texts.get(each.name, "5" if isinstance(each.default, int) else "40s") for each in SETTINGS
    }
    environ["FENCEPOST_PUBLISH_TIMEOUT"] = "5s"
    settings = load_settings(environ=environ)
    assert {settings.source(each.name).kind for each in SETTINGS} == {"environment"}
    assert settings.destinations == (("events", "python:shop.events:publish"), ("hook", "https://h/?a=b"))
    assert settings.routes == (
        ConfiguredRoute("order.*", "https://example.com/hook"),
        ConfiguredRoute("mail.*", ("hook", "events")),
        ConfiguredRoute("*", ("events",)),
    )
    assert settings.dispatcher.queues == ("a", "b")
    assert (settings.dispatcher.notify, settings.log_json, settings.dispatcher.max_age) == (False, True, None)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert load_settings(environ={"FENCEPOST_BATCH": "", "FENCEPOST_CONFIG": ""}).dispatcher.batch == 100


def test_the_file_can_be_named(folder: Path) -> None:
    write(folder, "batch = 1")
    write(folder, "batch = 2", "two.toml")
    write(folder, "batch = 3", "three.toml")
    environ = {"FENCEPOST_CONFIG": "two.toml"}
    assert load_settings(environ=environ).dispatcher.batch == 2
    assert load_settings(config="three.toml", environ=environ).dispatcher.batch == 3
    assert "missing.toml: cannot be read (No such file or directory)" in problems(FENCEPOST_CONFIG="missing.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bacth = 5", "fencepost.toml: unknown setting 'bacth': did you mean 'batch'?"),
        (
            "[dispatcher]\nbatch = 5",
            "unknown setting 'dispatcher': the only tables are [worker], [destinations] and [routes]",
        ),
        ("zzz = 5", "unknown setting 'zzz': `fencepost config show` lists the settings"),
        ("batch = true", "batch (file fencepost.toml): expected a whole number, not true or false"),
        ('batch = "5"', "batch (file fencepost.toml): expected a whole number, not a text"),
        ("batch = 5.0", "expected a whole number, not a number"),
        ("notify = 1", "expected true or false, not a whole number"),
        ('notify = "yes"', "expected true or false, not a text"),
        ('queues = "a"', "expected a list of names, not a text"),
        ("queues = []", "expected names, at least one"),
        ('queues = ["a", 5]', "expected names, at least one"),
        ("lease = true", 'expected a duration such as "10s" or a number of seconds, not true or false'),
        ("lease = nan", "expected a duration such as 10s"),
        ("lease = -1", "expected a duration such as 10s"),
        ("lease = inf", "expected a duration such as 10s"),
        ("store = 5", "store (file fencepost.toml): expected a text, not a whole number"),
        ("schema = 1979-05-27", "expected a text, not date"),
        ('log_level = "loud"', "expected debug or info or warning or error, not 'loud'"),
        ('routes = "stdout:"', "expected a table of PATTERN = URL or names of destinations, or tables [[routes]]"),
        ("routes = [5]", "expected a table of PATTERN = URL or names of destinations, or tables [[routes]]"),
        ('[routes]\n"*" = 5', "expected a URL or the names of destinations for '*'"),
        ('[routes]\n"*" = []', "'*' leads to 1 to 100 destinations, not to 0"),
        (
            '[routes]\n"*" = ["a", "b", "a"]',
            "routes (file fencepost.toml): '*' leads to one destination twice: a, b, a",
        ),
        ('[routes]\n"*" = ["a", 5]', "expected the name of a destination as text"),
        ('[routes]\n"*" = "a, b"', "'a, b' is no name of a destination"),
        ('[[routes]]\nto = "a"\n[[routes]]\nqueue = "m"', "route 2 leads nowhere: say to ="),
        ('[[routes]]\nto = "a"\nqueues = "m"', "route 1 has an unknown 'queues': there are event_type, queue"),
        ('[[routes]]\nto = "a"\nqueue = ["m"]', "route 1: expected a pattern as text for queue"),
        ('[[routes]]\nto = "a"\naggregate_type = " "', "a pattern must not be empty"),
        ('[[routes]]\nto = "a"\n[[routes]]\nto = "b"', "'*' stands twice: the first match wins"),
        ('[[routes]]\nto = "a"\nlease = "60s"', "setting 'lease' stands under [[routes]]: move it above"),
        ('destinations = "stdout:"', "expected a table of NAME = URL, or of NAME = { url = URL, … }, not a text"),
        (
            "[destinations]\nhook = 5",
            "destinations (file fencepost.toml): expected a destination's URL as text for 'hook'",
        ),
        ('[destinations]\nhook = "nowhere"', "'nowhere' is not a destination URL"),
        ("[destinations]\nhook = { timeout = 5 }", "expected a destination's URL as text for 'hook'"),
        (
            '[destinations]\nhook = { url = "https://h", x = [5] }',
            "'hook': x must be a text, a number, true or false",
        ),
        (
            '[destinations]\nhook = { url = "https://h", "a&b" = 5 }',
            "destination 'hook': 'a&b' is no name of an option",
        ),
        (
            '[destinations]\nhook = { url = "python:a:b", timeout = 5 }',
            "'hook' is an object in a module, which takes no",
        ),
        ('[destinations]\n"a b" = "stdout:"', "'a b' is no name of a destination"),
        (
            '[destinations]\nhook = "stdout:"\nlease = "60s"',
            "setting 'lease' stands under [destinations]: move it above",
        ),
        (
            '[destinations]\nstore = "postgresql://db/x"',
            "setting 'store' stands under [destinations]: move it above",
        ),
        ("outage_budget = -1", "expected a duration such as 10s"),
        ('breaker_cap = "2d"', "breaker_cap (file fencepost.toml): 172800 s must lie between 0 and a day"),
        ('[routes]\n"" = "stdout:"', "a pattern must not be empty"),
        ('[routes]\n"*" = "stdout:"\nlease = "60s"', "setting 'lease' stands under [routes]: move it above"),
        ("batch = x", "fencepost.toml: not valid TOML: Invalid value (at line 1, column 9)"),
        ("batch = 0", "batch (file fencepost.toml): 0 must lie between 1 and 10000"),
        ('table = "1 x"', "table (file fencepost.toml): '1 x' is not usable as a name"),
        ('lease = "5s"\npublish_timeout = "5s"', "publish_timeout (file fencepost.toml): a publish may take 5 s"),
    ],
)
def test_a_mistake_is_named_with_its_place(folder: Path, text: str, said: str) -> None:
    write(folder, text)
    assert said in problems()


def test_all_mistakes_are_told_at_once(folder: Path) -> None:
    write(folder, "bacth = 5\nlease = true\n")
    with pytest.raises(InvalidSettings) as caught:
        load_settings({"grace": "soon"}, environ={"FENCEPOST_BATCH": "many"})
    assert [re.split(r"[ :]", problem)[0] for problem in caught.value.problems] == [
        "fencepost.toml",
        "lease",
        "batch",
        "grace",
    ]


def test_a_file_that_is_no_text(folder: Path) -> None:
    folder.joinpath("fencepost.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in problems()


def test_a_directory_is_no_file(folder: Path) -> None:
    folder.joinpath("fencepost.toml").mkdir()
    assert "cannot be read (Is a directory)" in problems()


def test_a_misspelt_variable_is_told() -> None:
    assert (
        problems(FENCEPOST_BACTH="5")
        == "environment: unknown variable FENCEPOST_BACTH: did you mean FENCEPOST_BATCH?"
    )
    assert "did you mean FENCEPOST_QUEUES?" in problems(FENCEPOST_QUEUE="a")


def test_variables_of_others_are_left_alone() -> None:
    others = (
        "WORKER_PORT",
        "WORKER_SERVICE_HOST",
        "WORKER_PORT_80_TCP",
        "PORT",
        "SERVICE_HOST",
        "SERVICE_PORT",
        "PORT_5432_TCP_ADDR",
        "EMBEDDED_DIR",
        "TEST_PG15_BIN",
        "URL",
    )
    assert load_settings(environ={f"FENCEPOST_{name}": "x" for name in others}) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker = 5", "worker is a table: write [worker]"),
        ("worker_queues = ['a']", "unknown setting 'worker_queues': write it as 'queues' under [worker]"),
        ("[worker]\nbatch = 5", "setting 'batch' stands under [worker]: move it above"),
        ("[worker]\nlanes = 5", "setting 'lanes' stands under [worker]: there are queues, concurrency"),
        ("[worker]\nconcurrency = 'x'", "worker_concurrency (file fencepost.toml): expected a whole number"),
        ("[worker]\nqueues = []", "worker_queues (file fencepost.toml): expected names"),
    ],
)
def test_a_mistake_in_the_workers_table(folder: Path, text: str, said: str) -> None:
    write(folder, text)
    assert said in problems()


def test_flags_given_several_times() -> None:
    settings = load_settings({"queues": ("a", "b,c"), "routes": ("order.*=stdout:", "*=stdout:")}, environ={})
    assert settings.dispatcher.queues == ("a", "b,c")
    assert settings.routes == (ConfiguredRoute("order.*", "stdout:"), ConfiguredRoute("*", "stdout:"))
    assert "expected PATTERN=URL" in problems({"routes": ("stdout:",)})
    settings = load_settings(
        {"destinations": ("a=stdout:", "b=https://h/?x=y"), "routes": ("order.*= a, b", "*=a")}, environ={}
    )
    assert settings.destinations == (("a", "stdout:"), ("b", "https://h/?x=y"))
    assert settings.routes == (ConfiguredRoute("order.*", ("a", "b")), ConfiguredRoute("*", ("a",)))
    assert "expected NAME=URL" in problems({"destinations": ("stdout:",)})
    assert "destination 'a' is given twice" in problems({"destinations": ("a=stdout:", "a=stdout:")})
    assert "'*' stands twice" in problems({"routes": ("*=a", "*=b")})


def test_a_route_can_look_at_more_than_the_event_type(folder: Path) -> None:
    write(
        folder,
        """
        [[routes]]
        event_type = "order.*"
        queue = "default"
        aggregate_type = "order"
        to = ["events"]
        [[routes]]
        event_type = "order.*"
        to = "hook"
        [[routes]]
        to = "stdout:"
        """,
    )
    settings = load_settings(environ={})
    assert settings.routes == (
        ConfiguredRoute("order.*", ("events",), "default", "order"),
        ConfiguredRoute("order.*", ("hook",)),
        ConfiguredRoute("*", "stdout:"),
    )
    shown = "order.*[queue=default aggregate_type=order]=events  order.*=hook  *=stdout:"
    assert BY_NAME["routes"].shown(settings) == shown


def test_a_destination_may_be_called_like_a_setting(folder: Path) -> None:
    write(folder, '[destinations]\ntable = "https://h/"\nstore = { url = "https://shop/" }\n')
    assert load_settings(environ={}).destinations == (("table", "https://h/"), ("store", "https://shop/"))


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("https://h/p", "https://h/p?a=1"),
        ("https://h/p?", "https://h/p?a=1"),
        ("https://h/p?b=2", "https://h/p?b=2&a=1"),
        ("https://h/p?b=2&", "https://h/p?b=2&a=1"),
        ("stdout:", "stdout:?a=1"),
    ],
)
def test_options_of_a_table_go_behind_those_of_the_url(folder: Path, url: str, whole: str) -> None:
    write(folder, f'[destinations]\nx = {{ url = "{url}", a = 1 }}')
    assert load_settings(environ={}).destinations == (("x", whole),)


def test_no_mistake_shows_a_secret(folder: Path) -> None:
    write(folder, 'store = "postgresql://app:s3cret@x@db/shop"\n[routes]\n"*" = "https://u:s3cret@h:port/"\n')
    said = problems(FENCEPOST_STORE="postgresql://app:s3#cret@db/", FENCEPOST_ROUTES="s3cret@x")
    assert "store (file fencepost.toml): not a valid address" in said
    assert "cret" not in said


@pytest.mark.parametrize(
    "text",
    [
        '[destinations]\nhook = { url = "https://u:s3cret@h", password = ["s3cret"] }',
        '[destinations]\nhook = { url = "python:a:b", password = "s3cret" }',
        '[destinations]\nhook = { url = "s3cret@h", password = "s3cret" }',
        '[destinations]\nhook = { uri = "https://u:s3cret@h", password = "s3cret" }',
        '[destinations]\n"https://u:s3cret@h/" = "hook"',
        '[routes]\n"*" = ["https://u:s3cret@h/?x=s3cret"]',
        '[routes]\n"*" = [["https://u:s3cret@h/?x=s3cret"]]',
        '[routes]\n"*" = "s3cret@h"',
        '[[routes]]\nto = { url = "https://u:s3cret@h/" }',
    ],
)
def test_no_mistake_in_routes_or_destinations_shows_a_secret(folder: Path, text: str) -> None:
    write(folder, text)
    said = problems()
    assert "(file fencepost.toml): " in said
    assert "cret" not in said


def test_the_secrets_of_destinations_are_masked(folder: Path) -> None:
    write(
        folder,
        """
        [destinations]
        one = "nats://u:hunter1@h/"
        two = { url = "https://h/", password = "hunter%2 3", tls_key_pass = true, secret_env = "HOOK" }
        """,
    )
    settings = load_settings(environ={})
    redact = Redactor()
    redact.learn(settings)
    shown = BY_NAME["destinations"].shown(settings)
    masked_options = "password=***&tls_key_pass=***&secret_env=***"
    assert shown == f"one=nats://***@h/  two=https://h/?{masked_options}"
    assert redact("hunter1, hunter%2 3 and hunter%252%203") == "***, *** and ***"
    assert redact("HOOK is not set: turn it on") == "HOOK is not set: turn it on"
    assert "hunter" not in repr(settings)


def test_settings_show_no_secret_in_their_repr() -> None:
    settings = load_settings(
        {"store": "postgresql://app:s3cret@db/", "routes": ("*=https://u:s3cret@h/",)}, environ={}
    )
    assert "s3cret" not in repr(settings)
    assert BY_NAME["store"].shown(settings) == "postgresql://app:***@db/"
    assert "s3cret" not in BY_NAME["routes"].shown(settings)


def test_the_documentation_lists_every_setting() -> None:
    page = HERE.parents[2].joinpath("docs", "configuration.md").read_text("utf-8")
    for setting in SETTINGS:
        default = "" if setting.default is None else f"`{setting.kind.show(setting.default)}`"
        row = f"| `{setting.name}` | `{setting.variable}` | `{setting.option}` | {default} | {setting.help} |"
        assert row.replace("  ", " ") in page, row


def test_the_password_of_the_address_to_listen_at_is_never_shown() -> None:
    settings = load_settings(environ={"FENCEPOST_LISTEN_STORE": "postgresql://app:hunter2@db/shop"})
    redact = Redactor()
    redact.learn(settings)
    shown = BY_NAME["listen_store"].shown(settings)
    assert shown == "postgresql://app:***@db/shop"
    assert "hunter2" not in repr(settings) + redact("no route to hunter2")
    assert "listen_store (environment FENCEPOST_LISTEN_STORE)" in problems(FENCEPOST_LISTEN_STORE="embedded:here")
