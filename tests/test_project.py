"""The project keeps its own rules: one direction of imports, light to import, a README that runs."""

import ast
import contextlib
import graphlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from optax_compat import tf1

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "optax_compat"

# By the first name below the package. A module imports from its own level or a lower one.
LEVELS = {
    "types": 0,
    "rules": 1,
    "schedules": 1,
    "sparse": 1,
    "norms": 1,
    "packing": 1,
    "parts": 1,
    "operators": 1,
    "taps": 1,
    "tracing": 1,
    "transform": 2,
    "combine": 2,
    "jitting": 2,
    "ordering": 1,
    "precision": 2,
    "variable": 2,
    "buffer": 2,
    "overlay": 2,
    "gradients": 2,
    "embedding": 2,
    "replicas": 2,
    "optimizer": 3,
    "distribute": 3,
    "functional": 4,
    "tf1": 4,
    "keras": 4,
    "keras_legacy": 4,
    "addons": 4,
    "checkpoint": 5,
    "": 6,  # optax_compat/__init__.py
}
FOREIGN = {"tensorflow", "tf_keras", "keras", "optax", "flax", "haiku", "torch"}
HEAVY = {"matplotlib", "sklearn", "pandas", "tqdm", "pytest", "hypothesis", "IPython", "orbax"}

COMMANDS = [
    'pip install -e ".[demo]" && python examples/digits.py',
    'pip install -e ".[test]" && pytest',
]


def modules() -> dict[str, pathlib.Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: pathlib.Path, known: dict[str, pathlib.Path]) -> Iterator[str]:
    """The dotted names that a module imports, those inside of functions too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in known else base


def room(name: str) -> str:
    """`optax_compat.tf1.slots` -> `tf1`."""
    return (name.split(".") + [""])[1]


def test_every_module_has_a_level() -> None:
    assert {room(name) for name in modules()} <= set(LEVELS)


@pytest.mark.parametrize("name", modules())
def test_imports_go_one_way(name: str) -> None:
    known = modules()
    for other in imported(name, known[name], known):
        if other.split(".")[0] == "optax_compat":
            assert other in known, f"{name} imports {other}, which is no module"
            assert LEVELS[room(other)] <= LEVELS[room(name)], f"{name} imports {other} from above"


def test_imports_have_no_cycle() -> None:
    known = modules()
    graph = {name: {x for x in imported(name, path, known) if x in known} for name, path in known.items()}
    for name, others in graph.items():
        others.discard(name)
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("name", modules())
def test_module_imports_no_foreign_library(name: str) -> None:
    known = modules()
    top = {x.split(".")[0] for x in imported(name, known[name], known)}
    assert top & (FOREIGN | HEAVY) == set()


def test_import_loads_nothing_heavy() -> None:
    # In a process of its own: this one has loaded much of it for other tests.
    code = (
        "import sys, json, jax; before = set(sys.modules); import optax_compat; "
        "print(json.dumps(sorted({x.split('.')[0] for x in set(sys.modules) - before})))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    loaded = set(json.loads(run.stdout))
    assert "optax_compat" in loaded
    assert loaded & (FOREIGN | HEAVY) == set()


# ---- README.md


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a Markdown text as (language, code), those in HTML tables too."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def readme() -> str:
    """The text of README.md."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


def python_blocks() -> list[str]:
    """The README's Python code in order."""
    return [code for language, code in blocks(readme()) if language == "python"]


def ci(root: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ROOT/.ci/run."""
    return subprocess.run(["bash", str(root / ".ci" / "run"), *arguments], capture_output=True, text=True)


def test_readme_begins_with_the_two_commands() -> None:
    assert [code.strip() for _, code in blocks(readme())[:2]] == COMMANDS


def test_ci_runs_the_commands_of_the_readme() -> None:
    run = ci(ROOT, "--commands")
    assert (run.returncode, run.stdout.splitlines()) == (0, COMMANDS)


def test_ci_refuses_a_readme_with_other_commands(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "README.md").write_text(readme().replace("&& pytest\n", "&& pytest tests\n", 1))
    run = ci(tmp_path, "--commands")
    assert run.returncode != 0
    assert "pytest tests" in run.stderr


def test_readme_has_code_for_every_part() -> None:
    assert len(python_blocks()) >= 7


def test_readme_promises_the_same_numbers_before_and_after() -> None:
    before, after = [code.rpartition("# -> ")[2] for code in python_blocks()[:2]]
    assert before == after != ""


@pytest.mark.parametrize("code", python_blocks(), ids=lambda code: code.strip().splitlines()[0][:40])
def test_readme_code_runs_and_gives_what_it_says(code: str, tmp_path: pathlib.Path) -> None:
    """Runs a block; a statement `expression  # -> text` must give, or print, what it says."""
    if "import tensorflow" in code:
        # The other half of a comparison: a whole program, which changes TensorFlow for its process.
        pytest.importorskip("tensorflow")
        path = tmp_path / "before.py"
        path.write_text(code)
        run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
        assert run.stdout.split() == code.rpartition("# -> ")[2].split()
        return
    tf1.reset_default_graph()
    tree = ast.parse(code)
    lines = code.splitlines()
    namespace: dict[str, object] = {"__name__": "readme"}
    for node in tree.body:
        _, _, promised = lines[(node.end_lineno or 1) - 1].partition("# -> ")
        source = ast.unparse(node)
        if isinstance(node, ast.Expr) and promised:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                value = eval(compile(source, "README.md", "eval"), namespace)
            got = printed.getvalue().strip() if value is None else str(value)
            assert got == promised.strip(), source
        else:
            exec(compile(source, "README.md", "exec"), namespace)


def test_changelog_names_the_version_that_is_built() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', project, flags=re.MULTILINE)
    assert version is not None
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version[1]}]" in changelog
    assert "### Numerics" in changelog


def test_no_file_names_a_path_of_some_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split():
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ""}:
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not re.search(r"/(root|home|work|tmp|Users)/\w", text), name
