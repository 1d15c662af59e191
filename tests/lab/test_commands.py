"""The commands of the lab refuse what makes no sense before they start anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from lab.chaos.__main__ import main as chaos
from lab.conformance.__main__ import main as conformance
from lab.crashes.__main__ import main as crashes
from lab.fuzz.__main__ import main as fuzz
from lab.mutants.__main__ import main as mutants
from lab.simulator.__main__ import main as simulator

Main = Callable[[list[str]], int]

WRONG: list[tuple[Main, str]] = [
    (chaos, "--minutes 0"),
    (chaos, "--minutes nan"),
    (chaos, "--rate -1"),
    (chaos, "stale --count 0"),
    (conformance, "--histories 0"),
    (conformance, "--histories -3 --reach"),
    (conformance, "--out /"),
    (conformance, "--out /no/such/folder/report"),
    (crashes, "--every 0"),
    (crashes, "--offset -1"),
    (fuzz, "--cases 0"),
    (fuzz, "--cases -5"),
    (fuzz, "--case -1 --target enqueue"),
    (mutants, "--jobs 0"),
    (mutants, "--patience inf"),
    (simulator, "--schedules 0"),
    (simulator, "--hours nan"),
    (simulator, "--hours 0"),
    (simulator, "--cores -2"),
    (simulator, "--trace 0"),
    (simulator, "--without f1"),
    (simulator, "--only 5 --without garbage"),
    (simulator, "--only 5 --without faults=99999"),
]


@pytest.mark.parametrize(("main", "arguments"), WRONG, ids=[f"{main.__module__} {text}" for main, text in WRONG])
def test_what_makes_no_sense_is_a_wrong_use(
    main: Main, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words: Sequence[str] = arguments.split()
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert ended.value.code == 2
    option = next(word for word in words if word.startswith("--") and f"{word}" in capsys.readouterr().err)
    assert option
