"""From ``_target_`` nodes to objects, with errors in the words of the config."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from launcher.configure.schema import Node
from launcher.processes.errors import SettingsError, closest
from launcher.processes.origin import is_users_own, users_place


def build(option: str, node: Node, *arguments: Any, **more: Any) -> Any:
    """Build what ``node`` describes, with ``arguments`` before those of the node.

    Args:
        option: the full name of the setting, for messages.
        node: ``{"_target_": dotted name, argument: value, ...}``; nested nodes are built first.
        arguments: positional arguments that the run supplies, such as the parameters of an optimizer.
        more: keyword arguments that the run supplies.

    Raises:
        SettingsError: where the target does not exist, does not take these arguments, or a library refuses them.
            An exception of the user's own code passes unchanged.
    """
    factory = _factory(option, node, *arguments, **more)
    try:
        return factory(*arguments, **more)
    except Exception as error:
        if is_users_own(error):
            raise
        what = f"{type(error).__name__}: {error}{users_place(error)}"
        raise SettingsError(f"{option}: {node['_target_']} refuses: {what}") from error


def build_function(option: str, node: Node) -> Callable[..., Any]:
    """Build something to be called: an instance of a class, or a function with the node's arguments filled in.

    Raises:
        SettingsError: as ``build``, and for what cannot be called.
    """
    if inspect.isclass(_target(option, node)):
        built = build(option, node)
        if not callable(built):
            raise SettingsError(f"{option}: {node['_target_']} cannot be called as a function (prediction, target)")
        return built  # type: ignore[no-any-return]
    return _factory(option, node, check=False)


def accepts(option: str, node: Node, parameter: str) -> bool:
    """Whether the target of ``node`` has a parameter of this name."""
    return parameter in _parameters(_target(option, node))


def _factory(option: str, node: Node, *arguments: Any, check: bool = True, **more: Any) -> Callable[..., Any]:
    target = _target(option, node)
    own = {key: value for key, value in node.items() if not (key.startswith("_") and key.endswith("_"))}
    _check_names(option, node, target, own)
    if check:
        _check_call(option, node, target, arguments, {**own, **more})
    try:
        made = instantiate({"_convert_": "all", **node, "_partial_": True})
    except InstantiationException as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, InstantiationException) and is_users_own(cause):
            raise cause from None
        raise SettingsError(f"{option}: {_short(error)}") from error
    return made  # type: ignore[no-any-return]


def _target(option: str, node: Node) -> Any:
    name = node.get("_target_")
    if not isinstance(name, str):
        raise SettingsError(f"{option} has no _target_: name a class or function, e.g. {option}._target_=package.Name")
    try:
        with _no_log("hydra"):
            return get_object(name)
    except InstantiationException as error:
        raise SettingsError(f"{option}._target_={name}: {_short(error)}") from error
    except Exception as error:
        cause = error.__cause__ or error
        if not isinstance(cause, ImportError | AttributeError | ValueError | TypeError):
            raise
        raise SettingsError(
            f"{option}._target_={name}: {cause}; it must be importable from the folder the command is given in"
        ) from error


@contextmanager
def _no_log(name: str) -> Iterator[None]:
    """Keep a library from logging an error that is raised as well."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _parameters(target: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # some C functions tell no signature
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _check_names(option: str, node: Node, target: Any, own: Node) -> None:
    parameters = _parameters(target)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in own:
        if name not in parameters:
            hint = closest(name, parameters) or f"; it takes {', '.join(parameters) or 'nothing'}."
            raise SettingsError(
                f"{option}.{name}: {node['_target_']} takes no argument {name!r}{hint} If it comes from the config of "
                f"another _target_, remove it with ~{option}.{name}"
            )


def _check_call(option: str, node: Node, target: Any, arguments: tuple[Any, ...], own: Node) -> None:
    try:
        inspect.signature(target).bind(*arguments, *node.get("_args_", ()), **own)
    except TypeError as error:
        raise SettingsError(f"{option}: {node['_target_']}: {error}; add it: +{option}.NAME=...") from error
    except ValueError:
        return


def _short(error: BaseException) -> str:
    """The innermost cause in one line, without Hydra's advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
