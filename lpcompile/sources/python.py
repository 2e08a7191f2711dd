"""Models from the user's own code: `package.module:factory`, `path/net.py:factory`, `path/net.py`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lpcompile.errors import LpError, UsageError
from lpcompile.sources.inputs import InputRequest, Source, closest, no_shape, random_inputs

FACTORY_NAMES = ("model", "build", "make_model")
MAX_FACTORIES_LISTED = 6  # factories that a message lists


def call(spec: str, factory: Callable[..., Any], model_kwargs: dict[str, object]) -> Any:
    """Call a factory; an error in it names the specification."""
    try:
        return factory(**model_kwargs)
    except LpError:
        raise
    except Exception as error:
        raise UsageError(f"{spec}: building the model failed with {type(error).__name__}: {error}") from error


def from_python(spec: str, request: InputRequest, model_kwargs: dict[str, object]) -> Source:
    place, factory_name = _split(spec)
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place, spec)
    factory = _named(module, factory_name, place) if factory_name else _only_factory(module, place)
    made = factory if isinstance(factory, nn.Module) else call(spec, factory, model_kwargs)
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{spec} gave a {type(model).__name__}; a factory must return an nn.Module, or a pair of an nn.Module and "
            "its example inputs"
        )
    if inputs is None:
        inputs = getattr(module, "example_inputs", None)
    if request.shapes is not None:
        args, kwargs = random_inputs(request, [])
        return Source(spec, model, args, kwargs)
    if inputs is None:
        raise no_shape(spec)
    return _with_own_inputs(spec, model, inputs, request)


def _with_own_inputs(spec: str, model: nn.Module, inputs: Any, request: InputRequest) -> Source:
    """Inputs as the user's code gives them: a tensor, a tuple, a dict of keywords, or a function of the batch size."""
    notes: tuple[str, ...] = ()
    if callable(inputs) and not isinstance(inputs, torch.Tensor):
        inputs = call(f"{spec}: example_inputs", inputs, {"batch": request.size})
    elif request.batch is not None:
        notes = (f"batch {request.batch} was not used: {spec} gives its own example inputs",)
    if isinstance(inputs, dict):
        return Source(spec, model, (), dict(inputs), notes)
    return Source(spec, model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}, notes)


def _split(spec: str) -> tuple[str, str]:
    if spec.endswith(".py"):
        return spec, ""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise UsageError(f"{spec!r} does not name a model; write package.module:factory or path/file.py:factory")
    return place, name


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    """Import from this folder first, as `python file.py` does."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = closest(path.name, (other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else ())
        hint = f"; did you mean {', '.join(str(path.parent / name) for name in near)}?" if near else ""
        raise UsageError(f"no file {path}{hint}")
    name = f"lpcompile_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    with _first_on_path(str(path.resolve().parent)):
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise UsageError(f"{path}: importing it failed with {type(error).__name__}: {error}") from error
    return module


def _import(name: str, spec: str) -> ModuleType:
    with _first_on_path(os.getcwd()):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            missing = error.name or name
            hint = (
                f"check the spelling, or run from the folder that contains {missing.partition('.')[0]}"
                if name.startswith(missing)
                else f"pip install {missing.partition('.')[0]} may help"
            )
            raise UsageError(f"{spec}: cannot import {name}: {error}; {hint}") from error
        except Exception as error:
            raise UsageError(f"{spec}: importing {name} failed with {type(error).__name__}: {error}") from error


def _named(module: ModuleType, name: str, place: str) -> Any:
    found = getattr(module, name, None)
    if callable(found):
        return found
    known = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
    near = closest(name, known)
    known = near + [other for other in known if other not in near]  # the likeliest first
    more = f" and {len(known) - MAX_FACTORIES_LISTED} more" if len(known) > MAX_FACTORIES_LISTED else ""
    listed = ", ".join(known[:MAX_FACTORIES_LISTED]) or "nothing that can be called"
    raise UsageError(f"{place} has no factory {name!r}; it has {listed}{more}")


def _only_factory(module: ModuleType, place: str) -> Any:
    for name in FACTORY_NAMES:
        found = getattr(module, name, None)
        if inspect.isfunction(found) or isinstance(found, nn.Module):
            return found
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    ]
    ready = [model for model in classes if _needs_nothing(model)]
    if len(ready) == 1:
        return ready[0]
    names = ", ".join(model.__name__ for model in ready or classes)
    reason = (
        f"several classes can be built without arguments ({names})"
        if ready
        else f"no class can be built without arguments (found {names or 'no nn.Module'})"
    )
    raise UsageError(
        f"{place} does not say which model to take: {reason}; write {place}:NAME or add a function build()"
    )


def _needs_nothing(model: type[nn.Module]) -> bool:
    return all(
        parameter.default is not parameter.empty or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in inspect.signature(model).parameters.values()
    )
