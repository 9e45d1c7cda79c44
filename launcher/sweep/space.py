"""The search space of an adaptive sweep, from overrides in Hydra's grammar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from hydra.errors import HydraException

from launcher.processes.errors import SettingsError, first_line
from launcher.sweep.draws import Choice, Draws, Interval, Number, Parameter, Range

PARAMS = "hydra.sweeper.params"
MOST = 1_000_000
"""Numbers that are listed one by one."""


@dataclass(frozen=True)
class Space:
    """What the trials of a search have in common, and in what they differ.

    Attributes:
        elements: in the order of the overrides; one that is the same for every trial as it was typed, and the left side
            of one that is searched with its values.
    """

    elements: tuple[str | tuple[str, Parameter], ...]

    @property
    def parameters(self) -> list[Parameter]:
        """What is searched, by name, so that what is drawn does not depend on the order of the command line."""
        found = [element[1] for element in self.elements if not isinstance(element, str)]
        return sorted(found, key=lambda parameter: parameter.name)

    @property
    def size(self) -> int | None:
        """How many points there are; None: too many to count."""
        sizes = [parameter.size for parameter in self.parameters]
        return None if None in sizes else math.prod(size for size in sizes if size)

    def overrides(self, draws: Draws) -> tuple[str, ...]:
        """The overrides of one trial."""
        drawn = {parameter.name: parameter.draw(draws) for parameter in self.parameters}
        return tuple(e if isinstance(e, str) else f"{e[0]}={drawn[e[1].name]}" for e in self.elements)

    def searched(self, draws: Draws) -> tuple[str, ...]:
        """The overrides of one trial in which it differs from others."""
        pairs = zip(self.elements, self.overrides(draws), strict=True)
        return tuple(text for element, text in pairs if not isinstance(element, str))

    def about(self) -> dict[str, str]:
        """The values of each setting that is searched, in words."""
        return {parameter.name: str(parameter) for parameter in self.parameters}


def read_space(arguments: Iterable[str], params: Mapping[str, Any], loader: ConfigLoader | None = None) -> Space:
    """The search space of a command line.

    Args:
        arguments: overrides of the command line.
        params: ``hydra.sweeper.params``: setting -> value in the same grammar.
        loader: knows the configs, for ``glob(*)``.

    Raises:
        SettingsError: where nothing is searched, a setting is searched and given again, or its values contradict
            each other.
    """
    texts = [*((f"{PARAMS}.", text) for text in _flat(params)), *(("", text) for text in arguments)]
    parsed = [(f"{where}{text}", _parsed(where, text, loader)) for where, text in texts]
    _refuse_twice(parsed)
    elements = tuple(_element(said, override) for said, override in parsed)
    if all(isinstance(element, str) for element in elements):
        raise SettingsError(
            "hydra/sweeper=optuna: nothing is searched; give a setting some values, as optimizer.lr=interval(0.1,1), "
            f"range(1,8), choice(a,b) or a,b, on the command line or in {PARAMS}"
        )
    return Space(elements)


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """``a: {b: 1}`` says the same as ``a.b: 1``."""
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value if isinstance(value, str) else Transformer.str(value)}"


def _parsed(where: str, text: str, loader: ConfigLoader | None) -> Override:
    try:
        return OverridesParser.create(config_loader=loader).parse_override(text)
    except HydraException as error:
        lines = str(error).strip().splitlines()
        raise SettingsError(f"{where}{text} cannot be read: {lines[min(1, len(lines) - 1)]}") from error


def _refuse_twice(parsed: list[tuple[str, Override]]) -> None:
    seen: dict[str, tuple[str, Override]] = {}
    for said, override in parsed:
        name = _name(override)
        before = seen.setdefault(name, (said, override))
        if before[1] is not override and (override.is_sweep_override() or before[1].is_sweep_override()):
            raise SettingsError(f"{name} is searched and given twice: {before[0]} and {said}; leave one of them out")


def _name(override: Override) -> str:
    return override.get_key_element().lstrip("+~")


def _element(said: str, override: Override) -> str | tuple[str, Parameter]:
    if not override.is_sweep_override():
        return str(override.input_line)
    try:
        return override.get_key_element(), _parameter(_name(override), override)
    except _ContradictionError as error:
        raise SettingsError(f"{said}: {error}") from error
    except HydraException as error:
        raise SettingsError(f"{said}: {first_line(error)}") from error


class _ContradictionError(Exception):
    """No value, or none that can be drawn."""


def _parameter(name: str, override: Override) -> Parameter:
    sweep = override.value()
    tags = set(getattr(sweep, "tags", ()))
    if tags - {"log"}:
        raise _ContradictionError(f"the tag {min(tags - {'log'})} means nothing; there is log")
    log = "log" in tags
    if isinstance(sweep, IntervalSweep):
        return _interval(name, sweep, log=log)
    if isinstance(sweep, RangeSweep):
        return _range(name, sweep, log=log)
    return _choice(name, list(override.sweep_string_iterator()), log=log)


def _choice(name: str, texts: list[str], *, log: bool) -> Choice:
    if log:
        raise _ContradictionError("choices have no logarithm; take the tag away, or write interval(LOW,HIGH)")
    if not texts:
        raise _ContradictionError("there is nothing to choose from")
    return Choice(name, tuple(dict.fromkeys(texts)))


def _interval(name: str, sweep: IntervalSweep, *, log: bool) -> Interval:
    low, high = _bounds(sweep.start, sweep.end)
    if low > high:
        raise _ContradictionError(f"the lower bound {low} is above the upper bound {high}; swap them")
    if log and low <= 0:
        raise _ContradictionError(f"the lower bound {low} has no logarithm; give one above 0, or take the tag log away")
    return Interval(name, low, high, log)


def _range(name: str, sweep: RangeSweep, *, log: bool) -> Range:
    start, stop = _bounds(sweep.start, sweep.stop)
    step, _ = _bounds(sweep.step, sweep.step)
    if step == 0 or (stop - start) / step <= 0:
        raise _ContradictionError(f"there is no number from {start} to below {stop} in steps of {step}")
    values = sweep.range()
    if not isinstance(values, range) and (stop - start) / step > MOST:
        raise _ContradictionError(f"there are more than {MOST:,} numbers; write interval({start},{stop})")
    if log and (step != 1 or not isinstance(values, range)):
        raise _ContradictionError("the tag log goes with whole numbers in steps of 1; write interval(LOW,HIGH)")
    if log and start <= 0:
        raise _ContradictionError(
            f"the first number {start} has no logarithm; give one above 0, or take the tag log away"
        )
    return Range(name, values if isinstance(values, range) else tuple(values), step, log)


def _bounds(low: Any, high: Any) -> tuple[Number, Number]:
    for bound in (low, high):
        if not isinstance(bound, int | float) or not math.isfinite(bound):
            raise _ContradictionError(f"{bound} is no finite number")
    return low, high
