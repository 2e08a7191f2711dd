"""The model zoo, as data: what capture, cuts and the exactness gate are tried on.

    from lpcompile.zoo import zoo
    for entry in zoo("timm"):
        model, make_inputs = entry.build()

Five suites: `torchvision` (every classification model: `vision`), `timm` (every family: `timm_families`), `hf` (tiny
configurations of transformers: `language`, from `hf_text`, `hf_decoders` and `hf_media`), `user` (modules as people
write them: `user_models`, from `user_forms`, `user_layers` and `user_state`) and
`strangers` (libraries that the compiler was not tuned for, which the extra `zoo` installs).
Listing imports none of those packages; building an entry does. `check` compares one model with eager execution, with
`aux_check` and `emit_check` for AuxNets and emitted code; `run` is the command.
Imports the compiler, emit, draw and sources.
"""

from __future__ import annotations

import difflib

from lpcompile.errors import UsageError
from lpcompile.zoo import language, strangers, timm_families, user_models, vision
from lpcompile.zoo.entry import InputMaker, Inputs, ZooEntry

__all__ = ["SUITES", "InputMaker", "Inputs", "ZooEntry", "find", "zoo"]

SUITES = {
    "torchvision": vision.entries,
    "timm": timm_families.entries,
    "hf": language.entries,
    "user": user_models.entries,
    "strangers": strangers.entries,
}


def zoo(suite: str | None = None) -> list[ZooEntry]:
    """The entries of one suite, or of all."""
    if suite is not None and suite not in SUITES:
        raise UsageError(f"no zoo suite {suite!r}; the suites are {', '.join(SUITES)}")
    return [entry for name, entries in SUITES.items() if suite in (None, name) for entry in entries()]


def find(name: str) -> ZooEntry:
    """The entry called `name`, such as `timm:xcit_nano_12_p16_224`."""
    entries = {entry.name: entry for entry in zoo()}
    if name not in entries:
        close = difflib.get_close_matches(name, entries, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else f"names begin with {', '.join(SUITES)} and a colon"
        raise UsageError(f"no model {name!r} in the zoo; {hint}")
    return entries[name]
