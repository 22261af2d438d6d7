"""Which tests are slow, in which order the files run, and how drawings are compared."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, zip_longest
from typing import Any
from xml.etree import ElementTree

import pytest

from quiet_drawings import quiet

NO_CHROMIUM = "needs Chromium (not found as $CHROMIUM, chromium, chromium-browser or google-chrome)"

# The fixtures that build a book, or look at one in a browser.
SLOW = {"built_site", "tiny_book", "chromium"}
# Of the files that take most of the time `make check` runs one test in so many. One of `diagnose` takes half a second
# to six, half of those of the transformations compile for a second, those of accuracy ask an oracle of many digits, and
# of contracts and laws there are hundreds. One that stays stays whatever its mark, so that a fault in what all of them
# try is seen.
SAMPLED = {"test_diagnose.py": 8, "test_torch_transforms.py": 4, "test_accuracy.py": 8}
SAMPLED |= {"test_contracts.py": 4, "test_laws.py": 4}


def find_chromium() -> str | None:
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the browser's path; the tests that ask for it are skipped where there is none."""
    return find_chromium() or ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests by what they ask for; leave out those that need a browser where there is none."""
    seen: Counter[str] = Counter()
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & SLOW:
            item.add_marker(pytest.mark.slow)
        if item.path.name in SAMPLED:
            seen[item.path.name] += 1
            if seen[item.path.name] % SAMPLED[item.path.name]:
                item.add_marker(pytest.mark.slow)
            else:
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "slow"]
        if "chromium" in fixtures and find_chromium() is None:
            item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))
        if item.path.suffix == ".ipynb":
            # nbval would compare a drawing as a string, and its last digits are the processor's.
            item.parent.skip_compare += (SVG,)
            item.compare_outputs = partial(same_outputs, item, item.compare_outputs)
    # A file goes to one worker. Those that take long begin, so that no core waits for the last one alone.
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    items[:] = [item for file in sorted(files, key=_turn) for item in file]


SVG = "image/svg+xml"
PLACES = {"d", "x", "y", "width", "height", "viewBox", "points", "transform"}
TENTH_OF_A_PIXEL = 0.075  # of a point, which is what Matplotlib draws in


def parts(drawing: str) -> Iterator[str]:
    """Yield the numbers that place something, one by one, and all else word by word."""
    for element in ElementTree.fromstring(quiet(drawing)).iter():
        yield f"<{element.tag.rpartition('}')[2]}> {' '.join((element.text or '').split())}"
        for name, value in element.attrib.items():
            yield from re.findall(r"-?\d+\.?\d*|[^\s\d-]+", value) if name in PLACES else (f"{name}={value}",)


def same_outputs(cell: Any, texts_agree: Callable[..., bool], drawn: Any, stored: Any) -> bool:
    """Compare what is no drawing as nbval does; then the drawings, to a tenth of a pixel."""
    if not texts_agree(drawn, stored):
        return False
    pairs = [[out.data[SVG] for out in outputs if SVG in out.get("data", {})] for outputs in (stored, drawn)]
    for pair in zip_longest(*pairs, fillvalue="<none/>"):
        old, new = map(parts, pair)
        if "rounding-errors" in cell.cell.metadata.get("tags", []):
            # Where these lie is the processor's: the words are compared.
            old, new = ((part for part in all_ if part.startswith("<text>")) for all_ in (old, new))
        for was, now in zip_longest(old, new, fillvalue="nothing"):
            number = re.fullmatch(r"-?\d+\.?\d*", was) and re.fullmatch(r"-?\d+\.?\d*", now)
            if was != now and not (number and abs(float(was) - float(now)) <= TENTH_OF_A_PIXEL):
                said = f"the drawing stored has {was[:80]!r} where that drawn has {now[:80]!r}"
                cell.comparison_traceback.append(said)
                return False
    return True


def _turn(file: list[pytest.Item]) -> int:
    """When a file runs: builds and browsers, then chapters, then what is quick."""
    if any(item.get_closest_marker("slow") for item in file):
        return 0
    return 1 if file[0].path.suffix == ".ipynb" else 2
