"""The licences of the lock: what is not on the list fails; what could not be asked is not called sound."""

from __future__ import annotations

import json
import re
import sys

import pytest

import audit
from audit import Advisory, Licence, Vulnerabilities


def test_every_package_of_the_lock_has_a_licence_on_the_list() -> None:
    # Not the version: an environment of somebody's own may hold another.
    wrong = [x for x in audit.licences() if x.problem and not x.problem.startswith("installed is")]
    assert wrong == []
    assert len(audit.licences()) == len(audit.locked()) > 100


def test_what_the_repository_holds_of_others_has_its_licence() -> None:
    assert [x.problem for x in audit.shipped()] == ["", ""]


@pytest.mark.parametrize(
    ("expression", "text", "classifiers", "name"),
    [
        ("MIT", "GPL", [], "MIT"),
        (None, "Apache 2.0", [], "Apache-2.0"),
        (None, "Apache License, Version 2.0", [], "Apache-2.0"),
        (
            None,
            "\n BSD 3-Clause License\n\nCopyright",
            ["License :: OSI Approved :: BSD License"],
            "BSD-3-Clause",
        ),
        (None, "Copyright somebody", ["License :: OSI Approved :: BSD License"], "BSD"),
        (
            None,
            None,
            ["License :: OSI Approved :: GNU General Public License (GPL)"],
            "GNU General Public License (GPL)",
        ),
        (None, "UNKNOWN", [], ""),
        (None, "MIT or what you like", [], ""),
        # Two classifiers do not say whether both hold or one may choose.
        (
            None,
            None,
            ["License :: OSI Approved :: MIT License", "License :: OSI Approved :: BSD License"],
            "",
        ),
    ],
)
def test_a_licence_is_read(
    expression: str | None, text: str | None, classifiers: list[str], name: str
) -> None:
    assert audit.name_of(expression, text, classifiers) == name


@pytest.mark.parametrize(
    ("expression", "permissive"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR LGPL-3.0-only", False),
        ("(MIT OR GPL-3.0-only) AND GPL-2.0-only", False),
        ("MIT AND (Apache-2.0 OR GPL-2.0-only)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
        ("LicenseRef-Proprietary", False),
        ("", False),
    ],
)
def test_an_expression_is_understood(expression: str, permissive: bool) -> None:
    assert audit.is_permissive(expression) == permissive


def test_a_package_that_changes_its_licence_fails() -> None:
    assert audit.judge("numpy", "3.0", "AGPL-3.0-only").problem == "not on the list"
    assert audit.judge("numpy", "3.0", "").problem == "the metadata do not say which licence it is"
    assert audit.judge("certifi", "1", "MPL-2.0").problem == ""
    assert audit.judge("certifi", "1", "GPL-3.0-only").problem == "was MPL-2.0, now GPL-3.0-only"
    # Weak copyleft is allowed by name, with the reason, and not in general.
    assert audit.judge("numpy", "1", "MPL-2.0").problem == "not on the list"


ANSWER = {
    "dependencies": [
        {"name": "sound", "version": "1.0", "vulns": []},
        {
            "name": "holed",
            "version": "2.0",
            "vulns": [{"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fix_versions": ["2.1"]}],
        },
        {"name": "unknown", "skip_reason": "Dependency not found: unknown (3.0)"},
    ]
}


def test_what_could_not_be_asked_is_counted() -> None:
    known = audit.read_answer(json.dumps(ANSWER), packages=4)
    holes = [("holed 2.0", ["PYSEC-2026-1", "CVE-2026-1"], "2.1")]
    assert known == Vulnerabilities(2, 2, holes, "Dependency not found")


def test_what_was_judged_is_no_error_until_the_version_moves() -> None:
    holes = Vulnerabilities(1, 0, [("holed 2.0", ["PYSEC-2026-1", "CVE-2026-1"], "2.1")])
    judged = [Advisory("holed", "2.0", "a part", ["CVE-2026-1"], "2.1", "nothing calls it")]
    assert holes.unlisted([]) == holes.found
    assert holes.unlisted(judged) == []
    # Neither another one in the same release nor the same one in another release was judged.
    assert Vulnerabilities(1, 0, [("holed 2.0", ["CVE-2026-2"], "")]).unlisted(judged) != []
    assert Vulnerabilities(1, 0, [("holed 2.0.1", ["CVE-2026-1"], "")]).unlisted(judged) != []
    assert audit.outdated(judged) == [
        "advisories.toml: holed 2.0 (a part): the lock has none, look at it again"
    ]


def test_every_advisory_is_of_the_locked_version_and_says_why_it_cannot_be_reached() -> None:
    listed = audit.judged_advisories()
    assert len(listed) > 5
    assert audit.outdated(listed) == []
    for entry in listed:
        assert all(re.fullmatch(r"CVE-\d{4}-\d{4,}|GHSA(-\w{4}){3}|PYSEC-\d{4}-\d+", x) for x in entry.ids)
        assert len(set(entry.ids)) == len(entry.ids) > 0
        assert entry.reach.endswith(".") and entry.mended


@pytest.mark.parametrize(
    ("licence", "known", "options", "status", "said"),
    [
        ("", Vulnerabilities(1, 0, []), [], 0, ""),
        ("not on the list", Vulnerabilities(1, 0, []), [], 1, "not on the list"),
        ("", Vulnerabilities(1, 0, [("a 1", ["PYSEC-1"], "2")]), [], 1, "a 1: PYSEC-1, mended in 2"),
        ("", Vulnerabilities(0, 1, [], "no answer"), [], 0, ""),
        ("", Vulnerabilities(0, 1, [], "no answer"), ["--require-service"], 1, "could not ask about 1"),
    ],
)
def test_the_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    licence: str,
    known: Vulnerabilities,
    options: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(audit, "licences", lambda: [Licence("a", "1", "MIT", problem=licence)])
    monkeypatch.setattr(audit, "vulnerabilities", lambda: known)
    monkeypatch.setattr(sys, "argv", ["audit.py", *options])
    assert audit.main() == status
    assert said in capsys.readouterr().err
