"""The program passed to a subcommand, `module:name` or `file.py:name`, and its example inputs."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_INPUT = re.compile(r"(?:(?P<dtype>[a-z]\w*)\[(?P<sizes>[\d, ]*)\]|(?P<short>\d+(?:x\d+)*))\Z")


def program_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument and the options of a subcommand that takes a program."""
    for decorate in (
        click.argument("program", metavar="MODULE:NAME"),
        click.option(
            "-i",
            "--input",
            "inputs",
            multiple=True,
            metavar="SHAPE",
            help="An example input: 2x3, float32[2,3] or int64[4]; once for each argument.",
        ),
        click.option(
            "--example",
            metavar="MODULE:NAME",
            help="A tuple of example inputs, or a function that returns one.",
        ),
    ):
        function = decorate(function)
    return function


def loaded(program: str, inputs: tuple[str, ...], example: str | None) -> tuple[Any, tuple]:
    """Returns a module or function and the example inputs to call it with.

    A module class is instantiated without arguments. By default, the inputs are `example_inputs` of
    the same Python module.

    Raises:
        click.UsageError: the program does not exist, or has no inputs.
    """
    home, found = named(program)
    import torch

    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        try:
            found = found()
        except TypeError as error:
            raise click.UsageError(
                f"{program} needs arguments ({error}): name a module instance, or a function"
            ) from None
    if not callable(found):
        raise click.UsageError(
            f"{program} must be a module or a function, not {type(found).__name__}"
        )
    if example is not None:
        return found, _made(named(example)[1], example)
    if inputs:
        return found, tuple(map(_tensor, inputs))
    if hasattr(home, "example_inputs"):
        return found, _made(home.example_inputs, f"{program.rpartition(':')[0]}:example_inputs")
    raise click.UsageError(
        f"{program} needs example inputs: pass -i 2x3 for each input, --example MODULE:NAME, or "
        "define example_inputs next to it"
    )


def named(path: str) -> tuple[Any, Any]:
    """Returns the module and the value that `module:name` or `file.py:name` names.

    Raises:
        click.UsageError: the module or name does not exist.
    """
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(
            f"{path!r} does not have the form MODULE:NAME, such as models:net or net.py:Net"
        )
    home = _module(place)
    value = home
    for part in name.split("."):
        if not hasattr(value, part):
            names = [n for n in vars(home) if not n.startswith("_")] if value is home else []
            known = f"; it has {', '.join(names[:12])}" if names else ""
            raise click.UsageError(f"{place} has no {name!r}{known}")
        value = getattr(value, part)
    return home, value


def _module(place: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    if place.endswith(".py"):
        path = Path(place)
        if not path.exists():
            raise click.UsageError(f"there is no file {place}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise click.UsageError(f"there is no module {place}") from None


def _made(value: Any, path: str) -> tuple:
    value = value() if callable(value) and not hasattr(value, "shape") else value
    if hasattr(value, "shape"):
        return (value,)
    if not isinstance(value, tuple | list):
        raise click.UsageError(f"{path} must give a tuple of inputs, not {type(value).__name__}")
    return tuple(value)


def _tensor(text: str) -> Any:
    import torch

    found = _INPUT.match(text.replace(" ", ""))
    dtype = getattr(torch, found["dtype"] or "float32", None) if found is not None else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise click.UsageError(
            f"{text!r} is not a valid input: write 2x3, float32[2,3] or int64[4]"
        )
    sizes = found["short"].split("x") if found["short"] else found["sizes"].split(",")
    shape = [int(size) for size in sizes if size]
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator, dtype=dtype)
