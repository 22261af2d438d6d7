"""Test the mutants of one module; started by tools/mutants.py, which says what this is."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import textwrap
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

# Last, so that what the lock holds comes from the environment.
sys.path.append(sys.argv[2])

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

from common import ROOT
from mutants import MUTMUT, STATE, TABLE

# A mutant may take ten times as long as the tests that reach it take without it, and this much: what takes
# longer does not come back. Both in seconds of the processor, so that a busy machine kills nothing.
SLOWER, LEAST_LIMIT = 10.0, 20.0
MEMORY = 4 << 30  # what a mutant may allocate beyond what is there
SURVIVED, KILLED = "survived", "killed"


@dataclass
class Mutant:
    """One change of one function."""

    file: Path
    function: str  # Class.method, or the function's name
    was: str
    now: str
    lines: range  # of the statement that holds the change
    source: str  # the mutated function, without decorators
    first_line: int
    status: str = ""
    killer: str = ""
    basis: str = ""  # what the status depends on: the killing test's source, or the package's
    passed: list[str] = field(default_factory=list)  # the tests that a survivor has passed
    seconds: float = 0.0  # of the processor

    @property
    def key(self) -> str:
        return _digest(MUTMUT, str(self.file), self.function, self.source)

    @property
    def module(self) -> str:
        return ".".join(self.file.relative_to(ROOT / "code").with_suffix("").parts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Visitor(MutationVisitor):
    """mutmut's, without its fear of decorators: a function keeps them here, and only its code changes."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.FunctionDef) and super()._skip_node_and_children(node)


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    visitor = Visitor(mutation_operators, IgnoredCode(set(), set(), set()))
    module = MetadataWrapper(cst.parse_module(file.read_text(encoding="utf-8"))).visit(visitor)
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    position, parent = wrapper.resolve(PositionProvider), wrapper.resolve(ParentNodeProvider)

    def above(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while node is not module:
            yield node
            node = parent[node]

    def plain(function: cst.FunctionDef) -> str:
        bare = function.with_changes(decorators=[], leading_lines=[], lines_after_decorators=[])
        return textwrap.dedent(module.code_for_node(bare)).strip("\n")

    for mutation in visitor.mutations:
        node, function = mutation.original_node, mutation.contained_by_top_level_function
        if not isinstance(function, cst.FunctionDef):
            continue  # a constant of the module, or a statement of a class
        around = list(above(node))
        wording = any(isinstance(outer, cst.Raise) for outer in around)
        if isinstance(node, cst.BaseString) and (wording or isinstance(parent[node], cst.Expr)):
            continue  # the wording of an error; a docstring
        statement = next(
            outer
            for outer in around
            if isinstance(outer, (cst.BaseSmallStatement, cst.BaseCompoundStatement))
        )
        place = position[statement]
        scopes = [outer.name.value for outer in around if isinstance(outer, (cst.FunctionDef, cst.ClassDef))]
        outermost = scopes[scopes.index(function.name.value) :] if function.name.value in scopes else scopes
        source = plain(deep_replace(function, node, mutation.mutated_node))
        was, now = _difference(plain(function), source)
        if _is_python(source):
            yield Mutant(
                file,
                ".".join(reversed(outermost)),
                was,
                now,
                range(place.start.line, place.end.line + 1),
                source,
                position[function].start.line,
            )


def _is_python(source: str) -> bool:
    """Whether a mutant can be compiled at all: a keyword argument that lost its name may stand too early."""
    try:
        return bool(ast.parse(source))
    except SyntaxError:
        return False


def _difference(before: str, after: str) -> tuple[str, str]:
    """The lines of a function that a mutation changes, without their indentation."""
    old, new = before.split("\n"), after.split("\n")
    was: list[str] = []
    now: list[str] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            was += [line.strip() for line in old[i:j]]
            now += [line.strip() for line in new[k:m]]
    return "\n".join(was), "\n".join(now)


def plain_function(mutant: Mutant) -> FunctionType:
    """The function object that everyone calls, whatever it is wrapped in."""
    found: Any = importlib.import_module(mutant.module)
    for name in mutant.function.split("."):
        found = vars(found)[name]
    found = getattr(found, "__func__", found)
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), f"{mutant.function}: {found!r} has no code to change"
    return found


def mutate(mutant: Mutant) -> None:
    """Change the function in this process."""
    function = plain_function(mutant)
    # The line numbers stay near the original's.
    text = "from __future__ import annotations" + "\n" * (mutant.first_line - 1) + mutant.source
    scope = dict(function.__globals__)
    exec(compile(text, str(mutant.file), "exec", dont_inherit=True), scope)
    mutated = scope[function.__name__]
    function.__code__ = mutated.__code__
    function.__defaults__, function.__kwdefaults__ = mutated.__defaults__, mutated.__kwdefaults__


def forget(modules: list[Any]) -> None:
    """Empty what the package and the tests remember of the unmutated package."""
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


@dataclass
class Test:
    """One collected test: what it costs and what it reaches."""

    item: pytest.Item
    seconds: float = 0.0
    reached: dict[str, set[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.item.nodeid.split("[")[0]

    @functools.cached_property
    def digest(self) -> str:
        function = getattr(self.item, "function", None)
        return _digest(inspect.getsource(function) if function else self.item.path.read_text("utf-8"))

    @property
    def identity(self) -> str:
        """Tells the variants of a parametrised test apart."""
        return _digest(self.item.nodeid, self.digest)


@dataclass
class Trial:
    """A process that runs the tests on one mutant."""

    mutant: Mutant
    tests: list[Test]
    child: int
    pipe: int
    deadline: float

    def end(self) -> None:
        """Read which test failed, if one did, and let the process go."""
        killer = os.read(self.pipe, 4096).decode()
        os.close(self.pipe)
        _, ended, used = os.wait4(self.child, 0)
        status = os.waitstatus_to_exitcode(ended)
        self.mutant.status = SURVIVED if status == 0 else KILLED
        self.mutant.killer = killer or ("" if status == 0 else f"status {status}")
        self.mutant.seconds = used.ru_utime + used.ru_stime


class Runner:
    """The plugin of pytest that runs the mutants in place of the tests."""

    def __init__(self, module: str, jobs: int, fresh: bool) -> None:
        table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["modules"][module]
        self.files = [ROOT / name for name in table["files"]]
        self.state = STATE / f"{module}.json"
        self.module, self.jobs = module, jobs
        self.left_out: list[str] = table.get("without", [])
        self.old = {}
        if self.state.exists() and not fresh:
            rows = json.loads(self.state.read_text(encoding="utf-8"))["mutants"]
            self.old = {row["key"]: row for row in rows}
        # What every test depends on; the tests themselves are told apart.
        sources = [*(ROOT / "code" / "xent").rglob("*.py"), *(ROOT / "tests").glob("*.py")]
        self.package = _digest(*(path.read_text(encoding="utf-8") for path in sorted(sources)))
        self.known = STATE / f"{module}.tests.json"
        self.child_pipe: int | None = None
        self.failed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings  # here, because pytest wants to load the plugin first

        # A failure is all that is asked for; its simplest form would cost seconds.
        generate = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile("xent"), phases=generate)
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(part in item.nodeid for part in self.left_out)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
        error = call.excinfo
        if error is None or error.errisinstance(pytest.skip.Exception):
            return
        if self.child_pipe is not None:
            os.write(self.child_pipe, item.nodeid.encode())
            os._exit(1)
        self.failed.append(f"{item.nodeid}: {error.exconly()}")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed("the tests could not be collected")
        tests = self.baseline(session.items)
        if self.failed:
            raise session.Failed("the unmutated package fails:\n" + "\n".join(self.failed))
        self.prove(tests)
        self.test_mutants(tests)
        return True

    def baseline(self, items: list[pytest.Item]) -> list[Test]:
        """Run every test once, unmutated: they must pass, and what they reach and cost is noted.

        A test that passed before, with the same source and the same package, is taken at its word.
        """
        known: dict[str, Any] = {}
        if self.known.exists():
            cached = json.loads(self.known.read_text(encoding="utf-8"))
            known = cached["tests"] if cached["package"] == self.package else {}
        tests = [Test(item) for item in items]
        remembering = _modules(tests)
        for test in tests:
            before = known.get(test.item.nodeid)
            if before and before["digest"] == test.digest:
                test.seconds = before["seconds"]
                test.reached = {name: set(lines) for name, lines in before["reached"].items()}
            else:
                forget(remembering)  # or a later test would not reach what an earlier one left in a cache
                self.run_traced(test)
        say(f"{self.module}: {len(tests)} tests, {sum(test.seconds for test in tests):.0f} s")
        if not self.failed:
            found = {
                test.item.nodeid: {
                    "digest": test.digest,
                    "seconds": test.seconds,
                    "reached": {name: sorted(lines) for name, lines in test.reached.items()},
                }
                for test in tests
            }
            _write(self.known, {"package": self.package, "tests": found})
        return sorted(tests, key=lambda test: test.seconds)

    def run_traced(self, test: Test) -> None:
        """Run a test and note the lines of the mutated files that it reaches."""
        files = {str(file) for file in self.files}
        reached: defaultdict[str, set[int]] = defaultdict(set)

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            reached[frame.f_code.co_filename].add(frame.f_lineno)
            return trace

        begin = time.process_time()
        sys.settrace(trace)
        threading.settrace(trace)
        test.item.config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        test.seconds, test.reached = time.process_time() - begin, dict(reached)

    def prove(self, tests: list[Test]) -> None:
        """See that a fork is green without a mutant, and that it is red when a function only raises."""
        planted = next(mutants_of(self.files[0]))
        name = planted.function.split(".")[-1]
        planted = replace(planted, source=f"def {name}(*args, **kwargs):\n    raise AssertionError")
        quick = [test for test in tests if test.seconds < 0.05]
        for mutant, expected in ((replace(planted, function=""), SURVIVED), (planted, KILLED)):
            self.finish([self.start(mutant, quick, [])])
            if mutant.status != expected:
                message = f"a fork {mutant.status} that should have {expected}: {mutant.killer}"
                raise pytest.Session.Failed(message)

    def test_mutants(self, tests: list[Test]) -> None:
        """Find out what becomes of each mutant, from an earlier run or by a fork."""
        modules = _modules(tests)
        mutants = [mutant for file in self.files for mutant in mutants_of(file)]
        by_id = {test.item.nodeid: test for test in tests}
        killers: defaultdict[str, list[str]] = defaultdict(list)
        # What the parent holds stays shared with the children if the collector does not visit it.
        gc.collect()
        gc.freeze()
        begin, saved, tried = time.perf_counter(), time.perf_counter(), 0
        trials: list[Trial] = []

        def finish() -> None:
            trial = self.finish(trials)
            mutant, ranking = trial.mutant, killers[trial.mutant.function]
            if mutant.killer in by_id:
                mutant.basis = by_id[mutant.killer].digest
                if mutant.killer in ranking:
                    ranking.remove(mutant.killer)
                ranking.insert(0, mutant.killer)
                del ranking[12:]
            elif mutant.status == SURVIVED:
                reaching = self.reaching(mutant, tests)
                mutant.basis, mutant.passed = self.package, sorted(test.identity for test in reaching)
                change = f"{mutant.was}  ->  {mutant.now}".replace("\n", " / ")
                say(f"{self.module}.{mutant.function} ({len(reaching)} tests): {change}")

        for number, mutant in enumerate(mutants, 1):
            recall = self.old.get(mutant.key, {})
            todo = self.todo(recall, self.reaching(mutant, tests), by_id)
            if recall and not todo:
                for name in ("status", "killer", "basis", "passed", "seconds"):
                    setattr(mutant, name, recall[name])
                continue
            if len(trials) == self.jobs:
                finish()
            tried += 1
            first = [*killers[mutant.function], recall.get("killer", "")]
            trials.append(self.start(mutant, _ordered(todo, first), modules))
            if time.perf_counter() - saved > 10:
                self.save(mutants)
                each = (time.perf_counter() - begin) / tried
                say(f"{self.module}: {number} of {len(mutants)}, {each:.2f} s each")
                saved = time.perf_counter()
        while trials:
            finish()
        self.save(mutants)

    @staticmethod
    def reaching(mutant: Mutant, tests: list[Test]) -> list[Test]:
        """The tests that run the statement that the mutant changes."""
        lines = set(mutant.lines)
        return [test for test in tests if lines & test.reached.get(str(mutant.file), set())]

    def todo(self, row: dict[str, Any], reaching: list[Test], by_id: dict[str, Test]) -> list[Test]:
        """The tests that an earlier verdict leaves to run: none if nothing that it depends on has changed."""
        if not row or "passed" not in row:
            return reaching
        if row["status"] == SURVIVED:
            passed = row["passed"] if row["basis"] == self.package else []
            return [test for test in reaching if test.identity not in passed]
        killer = by_id.get(row["killer"])
        return reaching if killer and row["basis"] != killer.digest else []

    def start(self, mutant: Mutant, tests: list[Test], modules: list[Any]) -> Trial:
        """Fork a process that mutates itself and runs the tests."""
        limit = LEAST_LIMIT + SLOWER * sum(test.seconds for test in tests)
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiving)
            self.child_pipe = sending
            self.run_child(mutant, tests, modules, int(limit))
        os.close(sending)
        # A mutant that waits for ever takes no time of the processor.
        return Trial(mutant, tests, child, receiving, time.monotonic() + 10 * limit)

    def finish(self, trials: list[Trial]) -> Trial:
        """Wait for the first of the processes to end, and note how it did."""
        while True:
            ready = select.select([trial.pipe for trial in trials], [], [], 1.0)[0]
            for trial in trials:
                if trial.pipe in ready:
                    trials.remove(trial)
                    trial.end()
                    return trial
                if time.monotonic() > trial.deadline:
                    os.kill(trial.child, signal.SIGKILL)  # which closes the pipe

    def run_child(self, mutant: Mutant, tests: list[Test], modules: list[Any], limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY, here + MEMORY))
        try:
            forget(modules)
            if mutant.function:
                mutate(mutant)
            for test in tests:
                test.item.config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
        except BaseException:
            os._exit(2)
        os._exit(0)

    def save(self, mutants: list[Mutant]) -> None:
        kept = ("key", "function", "was", "now", "status", "killer", "basis", "passed", "seconds")
        rows = [{name: getattr(mutant, name) for name in kept} for mutant in mutants if mutant.status]
        # What is still to come keeps its earlier verdict, should this run be interrupted.
        if len(rows) < len(mutants):
            new = {row["key"] for row in rows}
            rows += [row for key, row in self.old.items() if key not in new]
        _write(self.state, {"mutants": rows})


def _modules(tests: list[Test]) -> list[Any]:
    """The package's modules and the tests' own."""
    package = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "xent"]
    owners = [test.item.module for test in tests if hasattr(test.item, "module")]
    return package + list({id(owner): owner for owner in owners}.values())


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    temporary.replace(path)


def _ordered(tests: list[Test], first: list[str]) -> list[Test]:
    """What has killed a mutant of this function before; then the quickest of each test; then the rest."""
    rank = {name: place for place, name in enumerate(first)}
    turn: defaultdict[str, int] = defaultdict(int)
    keyed = []
    for test in tests:  # the quickest first
        keyed.append((rank.get(test.item.nodeid, len(rank)), turn[test.name], test.seconds, len(keyed), test))
        turn[test.name] += 1
    return [entry[-1] for entry in sorted(keyed, key=lambda entry: entry[:-1])]


OUT = os.fdopen(os.dup(1), "w")


def say(line: str) -> None:
    """Report past pytest, whose own output goes nowhere."""
    print(line, file=OUT, flush=True)


def main() -> int:
    """Run pytest with the runner in place of its loop."""
    module, jobs, fresh = sys.argv[1], int(sys.argv[3]), "--fresh" in sys.argv
    tests = tomllib.loads(TABLE.read_text(encoding="utf-8"))["modules"][module]["tests"]
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    runner = Runner(module, jobs, fresh)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    status = pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[runner])
    for failure in runner.failed:
        print(failure, file=sys.stderr)
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
