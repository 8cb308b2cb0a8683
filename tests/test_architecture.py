"""Data flows one way: `icrl` is usable without Ray."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "icrl"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_icrl_imports_neither_ray_nor_distributed(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert not imported & {"ray", "distributed"}
