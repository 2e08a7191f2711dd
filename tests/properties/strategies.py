"""Strategies of random models. The simplest choice comes first, so that hypothesis shrinks towards it."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.properties.recipes import (
    Around,
    Attention,
    Concatenate,
    Gate,
    Group,
    Layer,
    Recipe,
    Repeat,
    Residual,
    State,
    Write,
)

WIDTHS = (4, 6, 8)
# Names that a stage or a Program also uses for something of its own.
ODD_NAMES = ("stages", "lam", "plan", "module", "captured")
stage_counts = st.integers(1, 4)
batches = st.integers(1, 4)


def examples(count: int) -> settings:
    """Settings of a property: the same few examples on every run, or $LPCOMPILE_EXAMPLES random ones."""
    asked = os.environ.get("LPCOMPILE_EXAMPLES")
    return settings(
        max_examples=int(asked) if asked else count,
        derandomize=asked is None or "CI" in os.environ,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),  # explaining a failure takes longer than finding it
        suppress_health_check=list(HealthCheck),
    )


def one_of(*choices: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)


LAYERS = ("encoder", "gru", "pool", "detached", "no_grad", "autocast", "checkpoint", "function", "weight norm",
          "double", "fourier", "quantise")  # fmt: skip
residuals = st.builds(
    Residual,
    width=one_of(0, *WIDTHS),
    stride=one_of(1, 1, 2),
    order=one_of("post", "pre"),
    norm=one_of("none", "batch", "group", "layer"),
    activation=one_of("relu", "gelu", "swish", "inplace", "functional inplace", "method"),
    add=one_of("+", "torch.add", "+=", "add_"),
    shortcut=one_of("projection", "pad"),
    dropout=one_of("none", "module", "functional", "path", "branch"),
    form=one_of("plain", "sequential", "list", "dict"),
)
attentions = st.builds(
    Attention,
    kind=one_of("chunk", "einsum", "sdpa", "torch", "torch weights"),
    mask=one_of("none", "made", "buffer", "input"),
    dropout=st.booleans(),
    norm_first=one_of(True, False),
)
others = st.one_of(
    st.builds(Concatenate, one_of("dense", "branches", "list", "halves")),
    st.builds(Gate, one_of("self", "condition", "gain")),
    st.builds(State, one_of("buffer", "scratch", "parameter", "parameter inplace", "count", "running")),
    st.builds(Write, one_of("arithmetic", "slice", "view", "zeros", "stream")),
    st.builds(Layer, one_of(*LAYERS)),
)
simple_blocks = st.one_of(residuals, attentions, others)


def _children(blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(blocks, min_size=1, max_size=3).map(tuple)


blocks = st.recursive(
    simple_blocks,
    lambda inner: st.one_of(
        st.builds(Group, _children(inner), one_of("sequential", "list", "dict", "bare")),
        st.builds(Around, _children(inner), one_of("add", "cat")),
        st.builds(Repeat, inner, one_of(2, 3)),
    ),
    max_leaves=4,
)


@st.composite
def recipes(draw: st.DrawFn, max_blocks: int = 4) -> Recipe:
    kind = draw(one_of("tokens", "image", "words"))
    inputs = draw(st.lists(one_of("condition", "gain", "mask"), unique=True, max_size=2))
    return Recipe(
        body=tuple(draw(st.lists(blocks, min_size=1, max_size=max_blocks))),
        kind=kind,
        width=draw(one_of(*WIDTHS)),
        stem=kind == "words" or draw(one_of(True, True, True, False)),
        head=draw(one_of("pool", "none", "words")),
        inputs=tuple(sorted(inputs)),
        style=draw(one_of("positional", "keyword", "mapping")),
        early=tuple(draw(st.lists(one_of(0, 1, 2), unique=True, max_size=2))) if draw(one_of(False, True)) else (),
        early_form=draw(one_of("stream", "head", "view")),
        output=draw(one_of("tensor", "tuple", "dict", "dataclass", "namedtuple")),
        echo=draw(one_of("none", "none", "input", "buffer", "argmax")),
        tied=draw(one_of(False, False, True)),
        alias=draw(one_of(False, False, True)),
        frozen=draw(one_of(False, False, True)),
        name=draw(one_of("block0", "block0", *ODD_NAMES)),
        eval_block=draw(one_of(False, False, False, True)),
        input_gradient=kind != "words" and draw(one_of(False, False, True)),
    )
