"""How hypothesis runs in every test."""

from hypothesis import settings

# No example has a deadline: a loaded machine would fail a test that says nothing about time. What is tried is
# the same at every run, so that a failure of CI can be repeated.
settings.register_profile("xent", deadline=None, derandomize=True)
settings.load_profile("xent")
