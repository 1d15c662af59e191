"""Arguments of jobs with a type: checked where a job is enqueued, and made again where it runs.

msgspec does it where it is installed, for its own structs, dataclasses, typed dictionaries and whatever else it
knows; pydantic for its models, and for the others where there is no msgspec. Plain JSON needs neither.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any

from fencepost.core.draft import JsonText
from fencepost.errors import ConfigError, InvalidMessage, Permanent


class Arguments(ABC):
    """How the arguments of one task travel."""

    @abstractmethod
    def encoded(self, value: Any) -> Any:
        """Return a value that JSON can hold, or JSON text.

        Raises:
            InvalidMessage: it is not of the type.
        """

    @abstractmethod
    def decoded(self, text: str) -> Any:
        """Return the arguments of a job.

        Raises:
            Permanent: what was enqueued is not of the type.
        """


def arguments_of(kind: Any, task: str) -> Arguments:
    """Return how arguments of this type travel; None stands for whatever JSON can hold.

    Raises:
        ConfigError: the type is none that can be checked, or the library for it is missing.
    """
    if kind is None:
        return _Plain()
    is_model = hasattr(kind, "model_validate_json")
    if not is_model and find_spec("msgspec") is not None:
        return _Msgspec(kind, task)
    if find_spec("pydantic") is not None:
        return _Pydantic(kind, task)
    raise ConfigError(
        f"task {task!r}: arguments of a type need msgspec or pydantic: pip install 'fencepost[msgspec]'"
    )


class _Plain(Arguments):
    def encoded(self, value: Any) -> Any:
        return value

    def decoded(self, text: str) -> Any:
        return json.loads(text)


class _Msgspec(Arguments):
    def __init__(self, kind: Any, task: str) -> None:
        import msgspec

        self._task, self._kind = task, kind
        try:
            self._decoder = msgspec.json.Decoder(kind)
        except TypeError as error:
            raise ConfigError(f"task {task!r}: msgspec cannot check arguments of this type: {error}") from None

    def encoded(self, value: Any) -> Any:
        import msgspec

        try:
            # Through JSON and back: what is enqueued is what the worker will read.
            data = msgspec.json.encode(value)
            self._decoder.decode(data)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _refused(self._task, error) from error
        return JsonText(data.decode())

    def decoded(self, text: str) -> Any:
        import msgspec

        try:
            return self._decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise _unreadable(self._task, error) from error


class _Pydantic(Arguments):
    def __init__(self, kind: Any, task: str) -> None:
        from pydantic import PydanticUserError, TypeAdapter

        self._task = task
        try:
            self._adapter: Any = TypeAdapter(kind)
        except PydanticUserError as error:
            raise ConfigError(f"task {task!r}: pydantic cannot check arguments of this type: {error}") from None

    def encoded(self, value: Any) -> Any:
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            checked = self._adapter.validate_python(value)
            data: bytes = self._adapter.dump_json(checked, by_alias=True)
            self._adapter.validate_json(data)
        except (ValidationError, PydanticSerializationError, ValueError) as error:
            raise _refused(self._task, error) from error
        return JsonText(data.decode())

    def decoded(self, text: str) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise _unreadable(self._task, error) from error


def _refused(task: str, error: Exception) -> InvalidMessage:
    return InvalidMessage(f"args of task {task!r} are not what it takes: {error}")


def _unreadable(task: str, error: Exception) -> Permanent:
    return Permanent(f"the arguments are not what task {task!r} takes here: {error}")
