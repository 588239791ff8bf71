"""A property computed on first access and cached on the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class cached(Generic[_Value]):  # noqa: N801 - a decorator
    """Like `functools.cached_property`, without the lock of Python 3.11 and earlier.

    >>> class Circle:
    ...     @cached
    ...     def area(self) -> float:
    ...         print("once")
    ...         return 3.14
    >>> circle = Circle()
    >>> circle.area, circle.area
    once
    (3.14, 3.14)
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, one: None, _: type) -> cached[_Value]: ...
    @overload
    def __get__(self, one: object, _: type) -> _Value: ...
    def __get__(self, one: object | None, _: type) -> cached[_Value] | _Value:
        if one is None:
            return self
        value = one.__dict__[self._name] = self._compute(one)
        return value
