"""Loads the ledger's plugin for everything under tests/."""

import pytest
from hypothesis import settings

import ledger_plugin

# No example has a deadline: a loaded machine would fail a test that says nothing about time. What is tried is
# the same at every run, so that a failure of CI can be repeated.
settings.register_profile("xent", deadline=None, derandomize=True)
settings.load_profile("xent")


def pytest_configure(config: pytest.Config) -> None:
    # `pytest_plugins` is allowed in the root conftest.py only, and this belongs to tests/.
    config.pluginmanager.register(ledger_plugin.LedgerPlugin(config), "xent-ledger")


@pytest.fixture
def worst_error(request: pytest.FixtureRequest) -> ledger_plugin.WorstError:
    """Compare numbers within a tolerance, and record for the ledger how far apart they were at worst."""
    return ledger_plugin.WorstError(request.node)
