"""How hypothesis runs."""

from __future__ import annotations

import pytest
from hypothesis import core, settings

from adversary import SEED

# No example has a deadline: a loaded machine would fail a test that says nothing about time. What is tried is
# the same at every run, so that a failure of CI can be repeated; XENT_SEED tries something else.
settings.register_profile("xent", deadline=None, derandomize=not SEED, database=None)
settings.load_profile("xent")


def pytest_configure(config: pytest.Config) -> None:
    """Let XENT_SEED move hypothesis as well, as its own option would."""
    if SEED and config.getoption("--hypothesis-seed", None) is None:
        core.global_force_seed = SEED
