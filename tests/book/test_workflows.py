"""The workflows ask for no more than they need; Binder gets what the chapters import."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import lock
from xent_site import REPOSITORY, SITE

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
NAMES = [path.name for path in WORKFLOWS]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
# What may be put into a shell's text: nothing that somebody outside can write.
HARMLESS = re.compile(r"(?:matrix\.[\w-]+|runner\.\w+)")
# The jobs that may write, and what.
WRITES = {
    ("deploy.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("drift.yml", "tell"): {"issues": "write"},
}


def read(name: str) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(
        (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    )
    return loaded


def events(workflow: dict[Any, Any]) -> set[str]:
    # YAML 1.1 reads the key `on` as true.
    triggers = workflow[True]
    return set(triggers if isinstance(triggers, (list, dict)) else [triggers])


def steps(workflow: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", [])


def problems(name: str, text: str) -> list[str]:
    """List what a workflow does that none here may."""
    workflow, found = yaml.safe_load(text), []
    for line in re.findall(r"^\s*(?:- )?uses:\s*(.*\S)", text, re.MULTILINE):
        if not line.startswith("./") and not PINNED.fullmatch(line):
            found.append(f"not pinned: {line}")
    for event in events(workflow) & {"pull_request_target", "workflow_run", "issue_comment", "issues"}:
        found.append(f"runs with rights on what strangers send: {event}")
    if workflow.get("permissions") not in ({}, {"contents": "read"}):
        found.append("the workflow's own permissions are not the least")
    if "concurrency" not in workflow:
        found.append("no concurrency")
    for key, job in workflow["jobs"].items():
        allowed = {"contents": "read"} | ({"pages": "read"} if key == "address" else {})
        rights = job.get("permissions")
        if rights is None:
            found.append(f"{key}: no permissions of its own")
        elif rights.items() - allowed.items() - WRITES.get((name, key), {}).items():
            found.append(f"{key}: too many rights: {rights}")
        if "uses" not in job and not 0 < job.get("timeout-minutes", 0) <= 120:
            found.append(f"{key}: no timeout")
        if "secrets" in job:
            found.append(f"{key}: hands on secrets")
    for step in steps(workflow):
        kept = step.get("with", {}).get("persist-credentials") is not False
        if step.get("uses", "").startswith("actions/checkout@") and kept:
            found.append("checkout keeps the token")
        for expression in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", step.get("run", "")):
            if not HARMLESS.fullmatch(expression):
                found.append(f"a shell's text holds {expression}")
    return found


def test_there_are_workflows() -> None:
    assert NAMES == ["audit.yml", "ci.yml", "deploy.yml", "drift.yml"]


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_is_careful(name: str) -> None:
    assert problems(name, (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2", "v6", "not pinned: actions/checkout@v6"),
        (" # v6.0.2", "", "not pinned"),
        ("pull_request:", "pull_request_target:", "strangers"),
        ("permissions: {}", "permissions: write-all", "not the least"),
        ("      contents: read", "      contents: write", "too many rights"),
        ("    permissions:\n      contents: read\n", "", "no permissions of its own"),
        ("persist-credentials: false", "persist-credentials: true", "keeps the token"),
        ("persist-credentials: false", "fetch-depth: 1", "keeps the token"),
        ("    timeout-minutes: 60\n", "", "no timeout"),
        ("bash .ci/run", "echo ${{ github.event.pull_request.title }}", "a shell's text"),
        ("bash .ci/run", "echo ${{ github.head_ref }}", "a shell's text"),
    ],
)
def test_a_careless_one_is_found(old: str, new: str, said: str) -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert old in text
    assert any(said in problem for problem in problems("ci.yml", text.replace(old, new)))


def test_the_same_action_is_the_same_everywhere() -> None:
    used = {
        line
        for path in WORKFLOWS
        for line in re.findall(r"uses: ([\w-]+/\S+ # \S+)", path.read_text(encoding="utf-8"))
    }
    actions = [line.partition("@")[0] for line in used]
    assert len(actions) == len(set(actions)), "two versions of an action"


def test_nothing_is_published_that_is_not_tested() -> None:
    jobs = read("deploy.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    # Without an `if` of its own a job runs only when everything that it needs has succeeded.
    assert set(jobs["deploy"]["needs"]) == {"address", "test"} and "if" not in jobs["deploy"]
    assert "refs/heads/main" in jobs["address"]["if"]
    ci = read("ci.yml")
    assert [step["run"] for step in steps(ci) if "run" in step] == ["bash .ci/run"]
    run = [index for index, step in enumerate(steps(ci)) if "run" in step]
    kept = [index for index, step in enumerate(steps(ci)) if "upload" in step.get("uses", "")]
    assert len(kept) == 2 and min(kept) > max(run)
    # What tells the pages their addresses is what the build reads.
    assert {REPOSITORY, SITE} == set(ci["jobs"]["test"]["env"])
    assert set(jobs["test"]["with"]) == set(ci[True]["workflow_call"]["inputs"])


def test_drift_writes_no_issue_where_new_releases_run() -> None:
    jobs = read("drift.yml")["jobs"]
    assert set(jobs["look"]["permissions"].values()) == {"read"}
    assert all(
        "checkout" not in step.get("uses", "") and "pip" not in step.get("run", "")
        for step in jobs["tell"]["steps"]
    )


# Stands in for `gh`: writes down what it is asked, knows one open issue or none, and may be refused.
GH = """#!/bin/bash
echo "$1 $2 $3" >> "$LOG"
case "$REFUSED" in *"$2"*) exit 1 ;; esac
if [ "$2" = list ]; then echo "$OPEN"; fi
"""


@pytest.mark.parametrize(
    ("state", "number", "refused", "asked"),
    [
        ("drift", "", "", ["issue list --state", "issue create --title"]),
        ("drift", "7", "", ["issue list --state", "issue edit 7"]),
        ("none", "7", "", ["issue list --state", "issue close 7"]),
        ("none", "", "", ["issue list --state"]),
        # Without the right to it, the summary has to do.
        ("drift", "", "list", ["issue list --state"]),
        ("drift", "", "create", ["issue list --state", "issue create --title"]),
        ("drift", "7", "edit", ["issue list --state", "issue edit 7"]),
    ],
)
def test_there_is_one_issue_on_drift(
    tmp_path: Path, state: str, number: str, refused: str, asked: list[str]
) -> None:
    step = next(step for step in read("drift.yml")["jobs"]["tell"]["steps"] if "run" in step)
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LOG": str(tmp_path / "log"),
        "OPEN": number,
        "REFUSED": refused,
        "STATE": state,
        "TITLE": step["env"]["TITLE"],
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text().splitlines() == asked
    assert ("::notice::" in done.stdout) == bool(refused)


def chapter_imports() -> set[str]:
    """List the packages that the chapters and what they import take from elsewhere."""
    names: set[str] = set()
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source = "".join(line for line in cell["source"] if not line.lstrip().startswith(("%", "!")))
                names |= modules(source)
    for path in [*(ROOT / "code" / "xent").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        names |= modules(path.read_text(encoding="utf-8"))
    own = {path.stem for path in (ROOT / "experiments").rglob("*.py")} | {"xent"}
    return names - own - set(sys.stdlib_module_names)


def modules(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_binder_gets_what_the_chapters_import() -> None:
    by_module = {"sklearn": "scikit-learn", "myst_nb": "myst-nb", "matplotlib_inline": "matplotlib-inline"}
    wanted = {by_module.get(name, name) for name in chapter_imports()}
    # Those come with the kernel that Binder puts into every environment, and with ipykernel.
    wanted -= {"IPython", "matplotlib-inline"}
    environment = yaml.safe_load((ROOT / ".binder" / "environment.yml").read_text(encoding="utf-8"))
    assert any(re.match(r"pytorch-cpu\b", entry) for entry in environment["dependencies"])
    assert wanted <= {*lock.BINDER, "torch"}


def test_binders_pins_are_those_of_the_lock() -> None:
    pins = re.findall(r"^[\w.-]+==\S+$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    written = (ROOT / ".binder" / "requirements.txt").read_text()
    assert written == lock.BINDER_HEADER + "".join(f"{pin}\n" for pin in lock.binder_pins(pins))


def test_binder_runs_the_second_half() -> None:
    script = ROOT / ".binder" / "postBuild"
    assert script.stat().st_mode & 0o100, "Binder runs only what is executable"
    assert ".binder/requirements.txt -e ." in script.read_text()


def test_the_tools_from_outside_are_pinned() -> None:
    lines = (ROOT / "tools" / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line) for line in lines)
