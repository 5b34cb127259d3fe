"""Imports point one way: from the command line down to the settings."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "mlnt"

# Each layer may import from itself and from those before it.
LAYERS = (
    {
        "_openmp",
        "allocator",
        "arguments",
        "errors",
        "files",
        "launcher",
        "packing",
        "texts",
        "distributed",
        "farewell",
        "storage",
    },
    {"checkpoints", "config", "runs", "device", "origin", "values"},
    {"data", "defaults", "models", "networks", "resnet"},
    {"meta"},
    {"evaluation", "gallery", "judging", "label_issues", "linear", "noise_model", "similar"},
    {"methods"},
    {"progress", "schedule", "steps"},
    {"left_out"},
    {"training"},
    {"filtered", "interruption", "iterations", "journal", "shelf"},
    {"recipes"},
    {"ready"},
    {"all_labels", "report"},
    {"outcome"},
    {"api", "prediction"},
    {"export"},
    {"reproduce", "bench", "estimator"},
    {"terminal", "cli", "cli_bench", "cli_data", "cli_reproduce", "cli_settings"},
)


def layer_of(module: str) -> int:
    top = module.split(".")[1]
    return next(level for level, names in enumerate(LAYERS) if top in names)


def test_every_module_has_a_layer() -> None:
    tops = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert tops - {"__init__", "__main__", "__pycache__"} == set().union(*LAYERS)


def test_no_import_points_upwards() -> None:
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE.parent).with_suffix("")
        module = ".".join(relative.parts)
        if relative.parts[1] in ("__init__", "__main__"):
            continue
        assert "from ." not in path.read_text(encoding="utf-8"), "imports are absolute here"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "mlnt":
                targets = [f"mlnt.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlnt."):
                targets = [node.module]
            elif isinstance(node, ast.Import):
                targets = [a.name for a in node.names if a.name.startswith("mlnt.")]
            else:
                continue
            for target in targets:
                if target == "mlnt.__version__":
                    continue
                checked += 1
                assert layer_of(target) <= layer_of(module), f"{module} imports {target}"
    assert checked > 50


def test_public_names_are_there() -> None:
    import mlnt

    for name in mlnt.__all__:
        assert getattr(mlnt, name).__doc__, name
