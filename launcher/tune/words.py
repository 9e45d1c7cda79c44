"""Numbers of a tuning as people read them."""

from __future__ import annotations

STEP = 1024


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> in_bytes(512), in_bytes(3 * 2**20), in_bytes(23.5 * 2**30)
    ('512 bytes', '3.0 MiB', '23.5 GiB')
    """
    if abs(count) < STEP:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= STEP
        if abs(count) < STEP:
            return f"{count:.1f} {unit}"
    return f"{count / STEP:.1f} TiB"


def milliseconds(seconds: float) -> str:
    """A length of time, in three digits.

    >>> [milliseconds(seconds) for seconds in (0.0001234, 0.0123, 0.25, 12.3456)]
    ['0.123 ms', '12.3 ms', '250 ms', '12346 ms']
    """
    found = seconds * 1e3
    return f"{found:.3f} ms" if found < 1 else f"{_three_digits(found)} ms"


def percent(share: float) -> str:
    """A share in percent.

    >>> [percent(share) for share in (0.0004, 0.014, 0.25, 1.5)]
    ['0 %', '1.4 %', '25 %', '150 %']
    """
    found = share * 100
    return f"{found:.1f} %" if 0.05 < found < 10 else f"{found:.0f} %"  # noqa: PLR2004 - where a digit more says something


def about(number: float) -> str:
    """A number that is not known further than to three digits.

    >>> [about(number) for number in (1279.6, 31.25, 0.5)]
    ['1,280', '31.2', '0.5']
    """
    return f"{float(f'{number:.3g}'):,.15g}"


def per_second(rows: float) -> str:
    """Rows per second, with a digit more where there are few.

    >>> per_second(1234.5), per_second(3.456)
    ('1,234', '3.5')
    """
    return f"{rows:,.0f}" if rows >= 100 else f"{rows:.1f}"  # noqa: PLR2004 - three digits


def _three_digits(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004
