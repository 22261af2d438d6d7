"""An import that writes to the terminal, silenced; what comes before and after it is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xent_book import quiet


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "noisy_module.py").write_text("import os\nos.write(2, b'greeting\\n')\nanswer = 42\n")
    (tmp_path / "broken_module.py").write_text(
        "import os\nos.write(2, b'greeting\\n')\nraise OSError('broken')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("noisy_module", "broken_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "noisy_module"


def test_the_greeting_is_dropped_and_the_rest_is_heard(noisy: str, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(2, b"before\n")
    assert quiet.import_module(noisy).answer == 42
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"


def test_an_error_surfaces_and_the_terminal_is_given_back(
    noisy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="broken"):
        quiet.import_module("broken_module")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_no_descriptor_leaks(noisy: str) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        quiet.import_module(noisy)
    assert len(os.listdir("/dev/fd")) == before
