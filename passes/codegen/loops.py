"""Consecutive calls of a container's children as a loop."""

from __future__ import annotations

import re

from lpcompile.passes.codegen.tree import Part

_SINGULAR = {"layers": "layer", "blocks": "block", "h": "block", "layer": "layer", "stages": "stage"}


def loop(lines: list[str], text: str, holder: Part) -> list[str]:
    """Write three or more consecutive calls of the children of `holder`, whose source is `text`, as a loop."""
    keys = list(holder.children)
    index = {(f"[{k}]" if holder.kind == "list" else f'["{k}"]'): i for i, k in enumerate(keys)}
    pattern = re.compile(rf"(\w+) = {re.escape(text)}(\[[^\]]*\])\(([^()]*)\)")
    found = [pattern.fullmatch(line) for line in lines]
    start = 0
    while start < len(lines):
        end = _run_end(found, start, index)
        if end - start < min(3, len(keys)) or end - start < 2:
            start += 1
            continue
        first, last = found[start], found[end - 1]
        assert first is not None and last is not None
        mine, theirs = first[3].split(", "), last[3].split(", ")
        before = [f"{theirs[0]} = {mine[0]}"] if mine != theirs else []
        name = _SINGULAR.get(holder.path[-1], "block")
        while any(re.search(rf"\b{name}\b", line.replace(text, "")) for line in lines):
            name += "_"
        some = (
            ""
            if end - start == len(keys)
            else f"[{index[first[2]] or ''}:{'' if index[last[2]] == len(keys) - 1 else index[last[2]] + 1}]"
        )
        values = f"{text}.values()" if holder.kind == "dict" else text
        values = f"list({values}){some}" if some and holder.kind == "dict" else f"{values}{some}"
        made = [f"for {name} in {values}:", f"    {last[1]} = {name}({last[3]})"]
        return [*lines[:start], *before, *made, *loop(lines[end:], text, holder)]
    return lines


def _run_end(found: list[re.Match[str] | None], start: int, index: dict[str, int]) -> int:
    """End of the run of calls from `start`: each calls the next child on the variable that the previous one set."""
    first = found[start]
    if first is None or first[2] not in index:
        return start
    end, arguments = start + 1, None
    while end < len(found):
        match = found[end]
        if match is None or index.get(match[2]) != index[first[2]] + end - start or match[1] != first[1]:
            break
        if arguments is None:
            mine, theirs = first[3].split(", "), match[3].split(", ")
            if mine != theirs and (mine[1:] != theirs[1:] or theirs[0] != first[1]):
                break
            arguments = match[3]
        if match[3] != arguments:
            break
        end += 1
    return end
