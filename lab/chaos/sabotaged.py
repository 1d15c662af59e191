"""The command line of fencepost with its fence taken out: ``python -m lab.chaos.sabotaged dispatch …``.

For the proof that a run can fail. Results are written twice, as where each answer was lost: with the fence that
would change nothing; without it, whoever lost a row by the first write, writes all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from fencepost.core.operation import Operation
from fencepost.runtime.link import Link
from fencepost.store import catalog

T = TypeVar("T")

_fragment = catalog._fragment  # noqa: SLF001 - there is no other way to break it, and there shall be none
_once = Link._once  # noqa: SLF001 - as above


ALWAYS = {
    "message_fence": "%(token)s::bigint IS NOT NULL",
    "job_fence": "%(tokens)s::text[]::uuid[] IS NOT NULL",
}


def without_fence(dialect: str, mark: re.Match[str]) -> str:
    """Return a fragment of the SQL, and in place of the fence what is always true."""
    return ALWAYS.get(mark[1]) or _fragment(dialect, mark)


async def _twice(link: Link, make: Callable[[], Operation[T]], atomic: bool) -> T:
    result = await _once(link, make, atomic)
    if link._role == "finalize":  # noqa: SLF001 - as above
        await _once(link, make, atomic)
    return result


if __name__ == "__main__":
    from fencepost.cli import main

    catalog._fragment = without_fence  # noqa: SLF001 - as above
    Link._once = _twice  # type: ignore[assignment]  # noqa: SLF001 - broken on purpose
    main()
