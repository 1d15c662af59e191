"""The race, from its beginning to its end."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fencepost.demo.place import TEMPORARY, signals_unwind, stage
from fencepost.demo.race_scenes import Mood, Scene, leased_scene, paused_scene, usual_scene
from fencepost.demo.race_verdict import judge
from fencepost.demo.screen import Screen, result_object
from fencepost.demo.tables import outbox

_STYLES = {Mood.PLAIN: "", Mood.SENT: "bold magenta", Mood.REFUSED: "bold green"}


def run(address: str, *, console: Console, as_json: bool) -> int:
    """See `fencepost.demo.run_race`."""
    screen = Screen(console, quiet=as_json)
    started = time.monotonic()
    with signals_unwind():
        screen.title("fencepost demo: two workers, one message")
        if address == TEMPORARY:
            screen.say("starting a PostgreSQL server in a temporary directory", seconds=0.0)
        with stage(address) as url, psycopg.connect(url, autocommit=True) as connection:
            scenes = _play(url, connection, screen)
            lines = judge(connection)
    seconds = time.monotonic() - started
    if as_json:
        screen.json(result_object("race", seconds, lines, timeline=_timeline(scenes)))
    else:
        screen.title("The verdict, from the tables")
        screen.verdict(lines, seconds)
    return 0 if all(line.holds for line in lines) else 1


def _play(url: str, connection: psycopg.Connection[Any], screen: Screen) -> list[Scene]:
    connection.execute("INSERT INTO fencepost_demo.naive_outbox DEFAULT VALUES")
    scenes = [usual_scene()]
    _play_scene(scenes[0], url, screen)
    for scene in (leased_scene(), paused_scene()):
        with connection.transaction():
            outbox().enqueue(connection, "race.started", {})
        _play_scene(scene, url, screen)
        scenes.append(scene)
    return scenes


def _play_scene(scene: Scene, url: str, screen: Screen) -> None:
    scene.play(url)
    screen.show(Text(f"\n {scene.title}", style="bold"))
    screen.show(_side_by_side(scene))


def _side_by_side(scene: Scene) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim", expand=True)
    table.add_column("ms", justify="right", style="dim", min_width=6)
    for name in scene.parts:
        table.add_column(f"worker {name}", ratio=1)
    for moment in scene.moments:
        text = Text(moment.text, style=_STYLES[moment.mood])
        table.add_row(str(moment.milliseconds), *(text if moment.worker == name else "" for name in scene.parts))
    return table


def _timeline(scenes: list[Scene]) -> list[dict[str, Any]]:
    return [
        {"scene": scene.name, "ms": moment.milliseconds, "worker": moment.worker, "did": moment.text}
        for scene in scenes
        for moment in scene.moments
    ]
