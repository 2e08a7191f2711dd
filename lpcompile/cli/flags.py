"""Command-line flags: declared once for all commands, and passed on as fields of a dataclass.

    def add_arguments(parser: Parser) -> None:
        parser.flag("model")                                   # as `FLAGS` declares it
        parser.flag("batch", help="samples per step")            # with a text of its own
        parser.flag("gate", metavar="FILE", help="...")        # a flag of this command alone

    def run(arguments: argparse.Namespace) -> int:
        request = Request(**typed(arguments, Request))         # the other fields keep their defaults

A flag is named after its field: `aux_budget` is typed `--aux-budget`. `arguments.typed` says which ones were typed, so
that the defaults stand in the dataclasses alone, and a flag that a mode does not read is refused instead of ignored.
A help text may be a function, called when the help is printed: some of them list what needs torch to be imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any

from lpcompile.errors import UsageError

Help = str | Callable[[], str]
DEFAULT_METHOD = "auto"  # `runtime.methods.DEFAULT`; --help does not import torch
DEFAULT_DEVICE = "v100"  # of simulate


def model_help() -> str:
    from lpcompile.sources import KINDS

    return ", ".join(kind.example for kind in KINDS)


def model_or_plan_help() -> str:
    return f"{model_help()}, or a saved plan (.json)"


def image_model_help() -> str:
    from lpcompile.sources import KINDS

    forms = [kind.form for kind in KINDS if kind.prefix and kind.prefix != "hf"]  # those take more than one tensor
    return f"a built-in model, {', '.join(forms)}, file.py:factory, ..."


def method_help(default: str = DEFAULT_METHOD) -> str:
    from lpcompile.runtime.methods import METHODS

    names = [f"{default} (default)", *(name for name in METHODS if name != default)]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def method_summaries() -> str:
    """One line per method."""
    from lpcompile.runtime.methods import METHODS

    return "\n".join(["methods:", *(f"  {name:<16}{method.summary}" for name, method in METHODS.items())])


def device_help(default: str = "") -> str:
    from lpcompile.simulate.device_spec import BUILT_IN

    names = [*([f"{default} (default)"] if default else []), *(name for name in BUILT_IN if name != default)]
    return f"{', '.join(names)}, or a JSON file"


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


# Flags of several commands. A command with another text, type or default overrides it where it adds the flag.
FLAGS: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "help": image_model_help},
    "K": {"type": int, "help": "number of stages, one process each (default 2)"},
    "batch": {"type": int, "help": "samples a step (default 64)"},
    "input": {"metavar": "SHAPE", "help": "the model's input without the batch, where nothing tells it: 3x32x32"},
    "method": {"help": method_help},
    "cost": {"choices": ["measured", "flops"], "help": "where the plans' costs come from (default measured)"},
    "data": {
        "metavar": "NAME|DIR",
        "help": "digits (scikit-learn's, default), cifar10, cifar100, mnist or fashion-mnist (downloaded into data/, "
        "or from NAME:DIR), imagenet:DIR, folder:DIR or a folder of images (train/CLASS/..., test/CLASS/...), or "
        "text:FILE for language models",
    },
    "epochs": {"type": int, "help": "passes over the data"},
    "lr": {"type": float, "help": "largest learning rate"},
    "optimizer": {"help": "sgd (default) or adamw"},
    "micro": {"type": int, "help": "micro-batches a step"},
    "init": {"choices": ["fresh", "copy", "consistent"], "help": "how AuxNets start, as in train"},
    "aux": {"choices": ["derived", "tied", "recursive", "recursive-shared"], "help": "form of the AuxNets"},
    "aux_budget": {
        "type": float,
        "metavar": "SHARE",
        "help": "cost of an AuxNet as a share of its stage's (default 0.1; penalty and lagrangian with a consistent "
        "start 0.05)",
    },
    "auxnet": {
        "metavar": "MODEL",
        "help": "a smaller model of the family, by name: it is cut where its tensors have the boundaries' shapes, and "
        "the pieces are the AuxNets (resnet20 for resnet110)",
    },
    "as_published": {
        "action": "store_true",
        "help": "the paper's own settings: method penalty, its ψ, β and noise, fresh AuxNets, its placement",
    },
    "aux_dtype": {"choices": ["bf16"], "help": "AuxNets compute in bfloat16; all else stays as it is"},
    "size": {"type": int, "metavar": "PX", "help": "height and width of the images"},
    "seed": {"type": int},
    "device": {"help": "cpu (default) or cuda: one GPU a rank"},
    "device_spec": {"metavar": "NAME|FILE", "help": device_help},
    "channels_last": {"action": "store_true", "help": "weights and images that way"},
    "compile": {"action": "store_true"},
    "transfer": {"choices": ["bf16", "int8"]},
    "timeout": {
        "type": float,
        "metavar": "S",
        "help": "seconds after which a rank that does not move is taken for dead",
    },
    "debug": {"action": "store_true", "help": "show Python tracebacks"},
}
POSITIONAL = ("model", "models", "checkpoint", "file", "action")


class Parser(argparse.ArgumentParser):
    """The parser of a command, to which flags are added by their names."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.flag_defaults: dict[str, Any] = {}
        self.late_epilog: Callable[[], str] | None = None  # lines to print as they are
        self._late: list[tuple[argparse.Action, Callable[[], str]]] = []

    def flag(self, name: str, short: str = "", **own: Any) -> None:
        """Add the flag `name`, with the defaults from FLAGS; `own` are keywords of `add_argument`."""
        keywords = {**FLAGS.get(name, {}), **own}
        help_: Help | None = keywords.pop("help", None)
        empty = {"store_true": False, "append": []}.get(keywords.get("action", ""))
        self.flag_defaults[name] = keywords.pop("default", empty)
        names = [name] if name in POSITIONAL else [*filter(None, [short]), option(name)]
        text = None if callable(help_) else help_
        action = self.add_argument(*names, default=argparse.SUPPRESS, help=text, **keywords)
        if callable(help_):
            self._late.append((action, help_))

    def format_help(self) -> str:
        for action, text in self._late:
            action.help = text()
        if self.late_epilog is not None:
            self.epilog, self.formatter_class = self.late_epilog(), argparse.RawDescriptionHelpFormatter
        return super().format_help()


def option(name: str) -> str:
    """How a flag is typed."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def settle(arguments: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Note which flags were typed, and give the others their defaults."""
    arguments.typed = frozenset(name for name in defaults if hasattr(arguments, name))
    for name, value in defaults.items():
        if name not in arguments.typed:
            setattr(arguments, name, value)


def typed(arguments: argparse.Namespace, record: type) -> dict[str, Any]:
    """The fields of a dataclass that were typed as flags."""
    return {f.name: getattr(arguments, f.name) for f in fields(record) if f.name in arguments.typed}


def refuse_unread(
    arguments: argparse.Namespace, mode: str, *, reads: Collection[str] = (), unread: Collection[str] = ()
) -> None:
    """Refuse a flag that `mode` would ignore: those named as `unread`, or all but those that it `reads`."""
    for name in sorted(arguments.typed - {"debug"}):
        if name in unread or (reads and name not in reads):
            read = [option(other) for other in reads if other != "model" and option(other) not in mode]
            only = f", which reads only {', '.join(read)}" if read else ""
            what = "MODEL" if name == "model" else option(name)
            raise UsageError(f"{what} has no effect with {mode}{only}; leave it out")


def refuse_both(arguments: argparse.Namespace, one: str, other: str) -> None:
    """Refuse two flags that say the same."""
    if {one, other} <= arguments.typed:
        refuse_unread(arguments, f"{option(one)} {getattr(arguments, one)}", unread=(other,))


def refuse_two_sizes(arguments: argparse.Namespace) -> None:
    """Refuse --size and --input for images of different sizes."""
    both = {"size", "input"} <= arguments.typed
    if both and arguments.input.partition(":")[0].split("x")[1:] != [str(arguments.size)] * 2:
        raise UsageError(f"--size {arguments.size} and --input {arguments.input} are of different images; give one")


def refuse_without(arguments: argparse.Namespace, needed: str, names: Collection[str]) -> None:
    """Refuse flags that have no effect without another flag."""
    for name in names:
        if name in arguments.typed and needed not in arguments.typed:
            raise UsageError(f"{option(name)} has no effect without {option(needed)}; give both, or leave it out")
