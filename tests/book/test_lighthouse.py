"""What tools/lighthouse.py makes of Lighthouse's reports; the measurement itself is `make lighthouse`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import lighthouse
from lighthouse import Result

ROOT = Path(__file__).resolve().parents[2]


def report(performance: float, accessibility: float, *, lost: str = "") -> dict[str, Any]:
    """A report as Lighthouse writes it, with what the tool reads."""
    scores = {"performance": performance, "accessibility": accessibility, "best-practices": 1, "seo": 0.9}
    audits: dict[str, Any] = {
        name: {"title": name, "score": performance, "numericValue": number}
        for number, name in enumerate(lighthouse.AUDITS, 1)
    }
    audits["color-contrast"] = {"title": "Colours", "score": 0 if lost == "color-contrast" else 1}
    audits["unweighted"] = {"title": "Advice", "score": 0}
    refs = [{"id": "color-contrast", "weight": 7}, {"id": "unweighted", "weight": 0}]
    categories = {
        name: {"score": score, "auditRefs": refs if name == "accessibility" else []}
        for name, score in scores.items()
    }
    return {"categories": categories, "audits": audits}


def test_a_report_is_read() -> None:
    result = lighthouse.read_report(report(0.97, 1.0))
    assert result.scores == {"performance": 97, "accessibility": 100, "best-practices": 100, "seo": 90}
    assert list(result.values.values()) == [1, 2, 3, 4, 5]
    assert result.complaints == () and lighthouse.failures("index.html", result) == []


@pytest.mark.parametrize(
    ("performance", "accessibility", "told"),
    [(0.94, 1.0, "performance 94"), (0.95, 0.99, "accessibility 99"), (0.1, 1.0, "performance 10")],
)
def test_a_score_that_is_too_low_fails(performance: float, accessibility: float, told: str) -> None:
    failures = lighthouse.failures("a.html", lighthouse.read_report(report(performance, accessibility)))
    assert [told in line for line in failures] == [True]


def test_what_costs_points_is_named() -> None:
    result = lighthouse.read_report(report(1.0, 0.9, lost="color-contrast"))
    assert result.complaints == ("accessibility: Colours",)


def test_a_page_that_did_not_load_has_no_score() -> None:
    broken = {**report(1.0, 1.0), "runtimeError": {"code": "NO_FCP", "message": "The page did not paint"}}
    with pytest.raises(SystemExit, match="did not paint"):
        lighthouse.read_report(broken)
    unscored = report(1.0, 1.0)
    unscored["categories"]["performance"]["score"] = None
    assert lighthouse.failures("a.html", lighthouse.read_report(unscored))


def test_the_median_of_the_runs_counts() -> None:
    runs = [lighthouse.read_report(report(score, 1.0)) for score in (0.5, 0.96, 0.99)]
    assert lighthouse.middle(runs).scores["performance"] == 96
    line = lighthouse.row("index.html", lighthouse.middle(runs))
    assert re.match(r"\| index\.html +\|  96 \| 100 \| 100 \|  90 \|", line)


def test_the_longest_chapter_is_a_chapter(tmp_path: Path) -> None:
    (tmp_path / "chapters").mkdir()
    for name, size in (("01_short", 10), ("02_long", 99), ("api", 500), ("equations", 900)):
        (tmp_path / "chapters" / f"{name}.html").write_text("x" * size)
    (tmp_path / "index.html").write_text("")
    assert lighthouse.longest_chapter(tmp_path) == "chapters/02_long.html"
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/part.html").write_text("")
    assert lighthouse.every_page(tmp_path)[0] == "index.html"
    assert "_static/part.html" not in lighthouse.every_page(tmp_path)


def test_a_version_that_is_there_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "node_modules/lighthouse"
    package.mkdir(parents=True)
    monkeypatch.setattr(lighthouse, "TOOLS", tmp_path)
    monkeypatch.setattr(lighthouse, "ROOT", tmp_path.parent)
    asked: list[list[str]] = []
    monkeypatch.setattr(lighthouse.subprocess, "run", lambda command, **options: asked.append(command))
    for version in ("1.0.0", lighthouse.LIGHTHOUSE):
        (package / "package.json").write_text(json.dumps({"version": version}))
        assert lighthouse.install() == package / "cli/index.js"
    assert len(asked) == 1 and asked[0][-1] == f"lighthouse@{lighthouse.LIGHTHOUSE}"
    assert "--no-package-lock" in asked[0]


def test_the_scores_in_contributing_are_those_that_the_tool_asks_for() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = text[text.index("## The page's speed") :]
    assert f"Lighthouse {lighthouse.LIGHTHOUSE}" in told and "make lighthouse" in told
    rows = re.findall(r"^\| `([\w./]+\.html)` \| (\d+) \| (\d+) \|", told, re.MULTILINE)
    assert [name for name, _, _ in rows][:1] == ["index.html"] and len(rows) >= 2
    for name, performance, accessibility in rows[:2]:
        scores = {"performance": int(performance), "accessibility": int(accessibility)}
        assert lighthouse.failures(name, Result(scores, {}, ())) == []
