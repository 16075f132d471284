"""The marks of the house: files, functions and docstrings stay readable."""

import ast
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("launch", "megaxf", "data_pipeline")


def sources(folders=FOLDERS):
    """(path, text) of every Python file in the folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text()


def functions(text: str):
    """(name, lines) of every function of a source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def test_files_are_short():
    lengths = {
        str(path.relative_to(ROOT)): text.count("\n") for path, text in sources((*FOLDERS, "tests", "benchmarks"))
    }
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    assert median(length for name, length in lengths.items() if not name.endswith("__init__.py")) <= 150


def test_functions_are_short():
    lengths = {f"{path.relative_to(ROOT)}:{name}": lines for path, text in sources() for name, lines in functions(text)}
    assert {name: length for name, length in lengths.items() if length > 80} == {}
    assert mean(lengths.values()) <= 16


def test_modules_and_public_functions_are_documented():
    bare = []
    for path, text in sources((*FOLDERS, "benchmarks")):
        tree = ast.parse(text)
        if not ast.get_docstring(tree):
            bare.append(str(path.relative_to(ROOT)))
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}:{node.name}")
    assert bare == []


def test_no_machine_paths():
    """The project speaks of the software alone."""
    hidden = ("/" + "work/", "/" + "root/", "/" + "tmp/w")
    found = [str(path) for path, text in sources((*FOLDERS, "tests", "benchmarks")) for word in hidden if word in text]
    assert found == []
