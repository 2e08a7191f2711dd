"""A JSON file that a user named is read, or refused with the reason."""

from __future__ import annotations

import re

import pytest

from lpcompile.core.system.json_file import read_json
from lpcompile.errors import UsageError


def test_a_file_is_read_or_refused_with_the_reason(tmp_path):
    file = tmp_path / "rules.json"
    file.write_text('{"a": 1}')
    assert read_json(file, "--gate rules.json") == {"a": 1}
    for text in ("{", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="^--gate rules.json is not JSON: "):
            read_json(file, "--gate rules.json")
    with pytest.raises(UsageError, match=re.escape("--gate no.json cannot be read: No such file or directory")):
        read_json(tmp_path / "no.json", "--gate no.json")
