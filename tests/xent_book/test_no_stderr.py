"""What C++ libraries write to the terminal while they are imported is dropped; what comes before and after is not."""

from __future__ import annotations

import os

import pytest

from xent_book.behaviours._registry import no_stderr


def test_the_greeting_is_dropped_and_the_rest_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    descriptors = len(os.listdir("/dev/fd"))
    os.write(2, b"before\n")
    with pytest.raises(OSError, match="broken"), no_stderr():
        os.write(2, b"greeting\n")
        raise OSError("broken")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"
    assert len(os.listdir("/dev/fd")) == descriptors
