"""Text on terminals: it fits, it has colour, and where there is no terminal it is what it was."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpcompile.cli.main import main
from lpcompile.core.tables import table
from lpcompile.draw.terminal import Look, look_of, styled

ROOT = Path(__file__).resolve().parents[2]
WORDS = "the value is written into a tensor that another stage reads"
COLOUR = re.compile(r"\x1b\[\d*m")


def cuts():
    rows = [[3, "layer1.0.relu", "yes", "float32[B, 64, 56, 56]", "█" * 12], [4, "layer1.1", "no", WORDS, "█" * 6]]
    return table(rows, ["position", "after", "cut", "carries / why not", "load"])


def test_nothing_is_changed_where_there_is_no_terminal():
    text = f"one line\n\n{cuts()}\n  another  line \n"
    assert styled(text, Look()) is text
    assert look_of(io.StringIO()) == Look()


def test_what_fits_stays_and_what_does_not_is_wrapped_without_losing_a_word():
    text = f"before\n\n{cuts()}\n\nafter"
    assert styled(text, Look(200)) == text
    for columns in range(60, 110):
        found = styled(text, Look(columns))
        assert max(map(len, found.split("\n"))) <= columns
        assert sorted(re.sub("[-█]", "", found).split()) == sorted(re.sub("[-█]", "", text).split())


def test_bars_keep_their_ratio_and_long_words_both_ends():
    full, half = (len(bar) for bar in re.findall("█+", styled(cuts(), Look(52))))
    assert 5 <= full < 12 and abs(half - full / 2) <= 0.5
    name = "features.denseblock4.denselayer16.norm1"
    found = styled(table([[name, WORDS]], ["unit", "why"]), Look(30))
    assert max(map(len, found.split("\n"))) <= 30
    assert re.search(r"features\.\S*…\S*norm1", found)


def test_long_lines_are_wrapped_between_words():
    wrapped = ["the value is written into a", "tensor that another stage", "reads"]
    assert styled(f"{WORDS}\nshort", Look(30)).split("\n") == [*wrapped, "short"]


def test_stages_have_their_colour_in_every_table_and_refused_cuts_are_dim():
    look = Look(None, colour=True)
    stages = styled(table([["0", "a", "██"], ["1", "b", "█"]], ["stage", "units", "load"]), look).split("\n")
    ranks = styled(table([["0", "2.5", "██"], ["1", "2", "█"]], ["rank", "busy ms", "load"]), look).split("\n")
    for stage, rank in zip(stages[2:], ranks[2:], strict=True):
        codes = COLOUR.findall(stage)
        assert codes == COLOUR.findall(rank) and len(codes) == 4 and codes[0] == codes[2]
    assert COLOUR.findall(stages[2])[0] != COLOUR.findall(stages[3])[0]
    assert stages[0].startswith("\x1b[1mstage\x1b[0m")
    yes, no = styled(cuts(), look).split("\n")[2:]
    assert "\x1b[2m" not in yes and no.startswith("\x1b[2m4\x1b[0m")
    assert (
        COLOUR.sub("", "\n".join(stages)).split()
        == table([["0", "a", "██"], ["1", "b", "█"]], ["stage", "units", "load"]).split()
    )


def test_the_advice_is_bold():
    assert styled("a\nK = 4 gives 3x.", Look(None, True), ["K = 4 gives 3x."]) == "a\n\x1b[1mK = 4 gives 3x.\x1b[0m"


@pytest.mark.parametrize(
    "variables, terminal, colour",
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_follows_the_usual_variables(variables, terminal, colour, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    found = look_of(stream)
    assert found.colour == colour and (found.columns is not None) == terminal


def on_a_terminal(arguments, columns):
    """What Python with these arguments writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, *arguments], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    found, end = b"", time.monotonic() + 120
    try:
        while select.select([ours], [], [], max(0.0, end - time.monotonic()))[0] and (chunk := os.read(ours, 65536)):
            found += chunk
    except OSError:  # the process has closed its end
        pass
    os.close(ours)
    try:
        assert process.wait(10) == 0
    finally:
        process.kill()
    return found.decode().replace("\r\n", "\n")


def test_inspect_fits_a_terminal_and_says_the_same_as_in_a_pipe(capsys):
    arguments = ["inspect", "resnet20", "-K", "3", "--batch", "4", "--cost", "flops", "--cuts", "--units"]
    found = on_a_terminal(["-m", "lpcompile", *arguments], 80)
    assert "\x1b[1m" in found and "\x1b[36m" in found
    plain = COLOUR.sub("", found)
    assert max(map(len, plain.split("\n"))) <= 80
    assert main(arguments) == 0
    piped = capsys.readouterr().out
    assert "\x1b" not in piped and max(map(len, piped.split("\n"))) > 80
    assert sorted(re.sub("[-█]", "", plain).split()) == sorted(re.sub("[-█]", "", piped).split())


MEASURED = """
import torch, lpcompile
from lpcompile.core.system import progress
progress.SHOWN_AFTER = 0.0
model, x = lpcompile.models.resnet20(), torch.randn(4, 3, 32, 32)
how = {"method": "penalty", "cache": False, "measure_seconds": 3.0}
print(lpcompile.parallelize(model, 2, example_inputs=x, **how).plan)
"""


def test_the_progress_bar_covers_all_that_is_measured_and_goes_away():
    found = on_a_terminal(["-c", MEASURED], 70)
    for phase in ("capturing the model", "a first step", "units, step 1", "AuxNet 1 of 1", "checking one step"):
        assert phase in found
    bars = [part for part in found.split("\r\x1b[K") if "█" in part[:30] or "░" in part[:30]]
    assert len(bars) >= 5 and max(map(len, bars)) < 70
    assert "\r\x1b[KResNet: K = 2" in found  # nothing of it is left when the text begins
