"""Configs and files that cannot be wrong: dataclasses checked by pydantic, with one sentence that names the key.

`dataclass` is that of the standard library with the types, ranges and choices of its fields checked whenever an
object is made. Numbers are finite; text such as 3e-3, which YAML takes for a word, counts as a number; true does not.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import NotRequired, is_typeddict

from tcpvit.errors import did_you_mean, nearest
from tcpvit.files import read_json

T = TypeVar("T")
LARGEST = 2**31 - 1  # of any count: what is larger fits into no machine
SHOWN = 100  # characters of a bad value that an error shows


def _whole(value: Any) -> Any:
    """NumPy's whole numbers as Python's; others, true among them, as they are."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _real(value: Any) -> Any:
    """Text that is a number, and NumPy's numbers, as Python's."""
    try:
        return value if isinstance(value, bool) or not isinstance(value, str | numbers.Real) else float(value)
    except (ValueError, OverflowError):
        return value


def _split(text: str, mark: str, read: Callable[[str], Any] = str) -> list[Any]:
    return [] if text in ("", "none") else [read(part) for part in text.split(mark)]


def _numbers(value: Any) -> Any:
    """64x32 as a list of numbers."""
    try:
        return _split(value, "x", int) if isinstance(value, str) and "x" in value else value
    except ValueError:
        return value


def _words(value: Any) -> Any:
    return _split(value, "+") if isinstance(value, str) else value


def _pattern(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _none(value: Any) -> Any:
    return None if isinstance(value, str) and value == "none" else value


Whole = Annotated[int, BeforeValidator(_whole), Strict(), Ge(-LARGEST), Le(LARGEST)]
Natural = Annotated[int, BeforeValidator(_whole), Strict(), Ge(0), Le(LARGEST)]
Count = Annotated[int, BeforeValidator(_whole), Strict(), Ge(1), Le(LARGEST)]
Seed = Annotated[int, BeforeValidator(_whole), Strict(), Ge(0), Le(2**32 - 1)]
Number = Annotated[float, BeforeValidator(_real), Strict(), AllowInfNan(False)]
Positive = Annotated[Number, Gt(0)]
NonNegative = Annotated[Number, Ge(0)]
Fraction = Annotated[Number, Ge(0), Le(1)]
Rate = Annotated[Number, Ge(0), Lt(1)]  # of dropping something, or of decay: all of it is too much
Share = Annotated[Number, Gt(0), Lt(1)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Maybe = Annotated[T | None, BeforeValidator(_none)]  # the command line may say none
Listed = Annotated[T, BeforeValidator(_numbers)]  # [64, 32] or 64x32
Size = Listed[Count | tuple[Count, Count]]  # of an image
Extent = Listed[Count | tuple[Count, Count] | tuple[Count, Count, Count]]  # of an image or a volume
Words = Annotated[tuple[Text, ...], BeforeValidator(_words)]  # [mix, shuffle] or mix+shuffle
Patterns = Annotated[Sequence[Text], BeforeValidator(_pattern), AfterValidator(tuple)]  # one wildcard or several

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
_KINDS |= {type(None): "null", dict: "keys and values", Any: "a value", tuple: "a list", list: "a list"}

_PLURALS = {int: "whole numbers", float: "numbers", str: "words"}


class ConfigError(ValueError):
    """A value that a config refuses; `key` is its place, with dots."""

    def __init__(self, key: str, problem: str):
        super().__init__(f"{key} {problem}")
        self.key, self.problem = key, problem


@contextmanager
def within(place: str) -> Iterator[None]:
    """Errors that name a key name it as part of `place`.

    >>> with within("model.options"):
    ...     checked(0, Count, "depth")
    Traceback (most recent call last):
    tcpvit.validation.ConfigError: model.options.depth should be a whole number of at least 1, got 0
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}.{error.key}", error.problem) from None


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = True) -> Callable[[type], type]:
        """A dataclass whose fields are checked when an object is made, by `replace` too; unknown keys are refused."""

        def decorate(cls: type) -> type:
            config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
            made = pydantic_dataclass(frozen=frozen, config=config)(cls)
            make = made.__init__

            @functools.wraps(make)
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
                try:
                    make(self, *args, **kwargs)
                except ValidationError as error:
                    names = (item.name for item in dataclasses.fields(made))
                    given = {**dict(zip(names, args, strict=False)), **kwargs}
                    raise _plain_error(error, made, given, "") from None

            made.__init__ = __init__
            return made

        return decorate


def checked(value: Any, hint: Any, key: str) -> Any:
    """`value` as the type `hint` asks for: a dataclass of this module, or any type of its fields.

    >>> checked("3e-3", Positive, "optimizer.lr"), checked([0.9, 1], tuple[Number, Number], "optimizer.betas")
    (0.003, (0.9, 1.0))
    >>> checked("fast", Positive, "optimizer.lr")
    Traceback (most recent call last):
    tcpvit.validation.ConfigError: optimizer.lr should be a number greater than 0, got 'fast'
    """
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        raise _plain_error(error, hint, value, key) from None


def read_checked(path: Path, hint: Any) -> Any:
    """The content of a JSON file, as it is, if it is of that type: what it lacks or holds wrongly is named."""
    content = read_json(path)
    try:
        checked(content, hint, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; restore it from a copy, or write it again") from None
    return content


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    own_config = _has_fields(hint)
    return TypeAdapter(hint) if own_config else TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def _plain_error(error: ValidationError, hint: Any, value: Any, key: str) -> ValueError:
    """The first problem as a sentence; an unknown key comes before what is missing in its place."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    keys, hint, value, rest = _locate(hint, value, first["loc"])
    place = key + "".join(f"[{item}]" if isinstance(item, int) else f".{item}" for item in keys)
    place = place.removeprefix(".")
    if first["type"] == "value_error":
        return cast(ValueError, first["ctx"]["error"])  # a sentence of __post_init__
    if first["type"] == "unexpected_keyword_argument" and dataclasses.is_dataclass(hint):
        return unknown_option(str(rest[0]), hint, place)
    if first["type"] == "missing" and _has_fields(hint):
        names = ", ".join(str(problem["loc"][-1]) for problem in problems if problem["type"] == "missing")
        return ValueError(f"{place or _bare(hint).__name__} does not say {names}")
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
    close = nearest(value, _choices(hint)) if isinstance(value, str) else None
    meant = f"; did you mean {close!r}?" if close else ""
    asked = describe(hint, value)
    if any(problem["type"] == "finite_number" for problem in problems):
        asked = asked.replace("a number", "a finite number")
    return ConfigError(place or "the content", f"should be {asked}, got {shown}{meant}")


def unknown_option(name: str, config: Any, place: str = "") -> ValueError:
    """The error that names the nearest field of a dataclass."""
    known = [item.name for item in dataclasses.fields(config)]
    where = f"{place} ({config.__name__})" if place else config.__name__
    return ValueError(f"{name!r} is no option of {where}{did_you_mean(name, known)}")


def _locate(hint: Any, value: Any, loc: Sequence[Any]) -> tuple[list[Any], Any, Any, Sequence[Any]]:
    """Follow pydantic's place of an error as far as it names keys: the keys, what is asked for there, what came."""
    keys: list[Any] = []
    for at, item in enumerate(loc):
        bare = _bare(hint)
        inside = get_args(bare)
        if _has_fields(bare):
            names = _names(bare)
            item = names[item] if isinstance(item, int) and item < len(names) else item
            if item not in names or not isinstance(value, Mapping) or item not in value:
                return keys, bare, value, loc[at:]
            hint = get_type_hints(bare, include_extras=True)[item]
        elif get_origin(bare) is dict and isinstance(value, Mapping) and item in value:
            hint = inside[1]
        elif get_origin(bare) in (tuple, list, Sequence) and isinstance(value, Sequence) and not isinstance(value, str):
            if not isinstance(item, int) or item >= len(value) or (inside[-1] is not Ellipsis and item >= len(inside)):
                break
            hint = inside[0] if inside[-1] is Ellipsis else inside[item]
        else:  # pydantic's names for the members of a union
            break
        value = value[item]
        keys.append(item)
    return keys, hint, value, ()


def _names(hint: Any) -> list[str]:
    """The fields of a dataclass, in their order, or the keys of a TypedDict."""
    return list(get_type_hints(hint)) if is_typeddict(hint) else [item.name for item in dataclasses.fields(hint)]


def _has_fields(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or is_typeddict(hint)


def _bare(hint: Any) -> Any:
    return _bare(get_args(hint)[0]) if get_origin(hint) in (Annotated, NotRequired) else hint


def describe(hint: Any, value: Any = None) -> str:
    """What a type asks for, in words.

    >>> describe(Maybe[Count]), describe(Rate), describe(Literal["std", "tcp"])
    ('a whole number of at least 1 or null', 'a number of at least 0 and less than 1', 'one of std, tcp')
    """
    bare, extras = _bare(hint), get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    origin, inside = get_origin(bare), get_args(bare)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member, value) for member in inside)
    if origin is Literal:
        return f"one of {', '.join(map(str, inside))}"
    if origin is tuple and inside[-1] is not Ellipsis:
        return f"a list of {len(inside)}"
    if origin in (tuple, Sequence) and _bare(inside[0]) in _PLURALS:
        number = "one or more " if any(isinstance(extra, MinLen) for extra in extras) else ""
        return f"a list of {number}{_PLURALS[_bare(inside[0])]}"
    if _has_fields(bare):
        return _KINDS[dict]
    word = _KINDS.get(origin or bare) or ("a list" if origin is Sequence else f"a {getattr(bare, '__name__', bare)}")
    return word + _range(extras, value)


def _range(extras: Sequence[Any], value: Any) -> str:
    """The bounds of a number; that of every count only where a value is beyond it."""
    low = [(x.ge, 0, f" of at least {x.ge}") for x in extras if hasattr(x, "ge") and x.ge != -LARGEST]
    low += [(x.gt, 1, f" greater than {x.gt}") for x in extras if hasattr(x, "gt")]
    beyond = isinstance(value, int) and abs(value) > LARGEST
    high = [(-x.le, 0, f" at most {x.le}") for x in extras if hasattr(x, "le") and (x.le < LARGEST or beyond)]
    high += [(-x.lt, 1, f" less than {x.lt}") for x in extras if hasattr(x, "lt")]
    return " and".join(max(side)[-1] for side in (low, high) if side)


def _choices(hint: Any) -> list[str]:
    bare = _bare(hint)
    if get_origin(bare) is Literal:
        return [word for word in get_args(bare) if isinstance(word, str)]
    unions = get_origin(bare) in (Union, types.UnionType)
    return [word for member in get_args(bare) for word in _choices(member)] if unions else []
