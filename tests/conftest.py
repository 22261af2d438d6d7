"""Loads the ledger's plugin for everything under tests/."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# No example has a deadline: a loaded machine would fail a test that says nothing about time. What is tried is
# the same at every run, so that a failure of CI can be repeated.
settings.register_profile("xent", deadline=None, derandomize=True)
settings.load_profile("xent")

ROOT = Path(__file__).resolve().parent.parent
# The ledger's code lies in tools/, where the book's build uses it too; neither folder is a package.
for folder in ("tools", "tests"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

import ledger_plugin  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    # `pytest_plugins` is allowed in the root conftest.py only, and this belongs to tests/.
    config.pluginmanager.register(ledger_plugin.LedgerPlugin(config), "xent-ledger")


@pytest.fixture
def worst_error(request: pytest.FixtureRequest) -> ledger_plugin.WorstError:
    """Compare numbers within a tolerance, and record for the ledger how far apart they were at worst."""
    return ledger_plugin.WorstError(request.node)
