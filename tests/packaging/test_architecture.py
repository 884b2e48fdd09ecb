"""The rules of the architecture that a machine can check (docs/architecture.md)."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADAPTERS = {"popdist_torch", "popdist_tf", "popdist_onnx"}
DOORS = {"popdist.poptorch", "popdist.tensorflow", "popdist.popart"}
FIRST_LAYER = (
    "popdist.exchange", "popdist.poprun", "popdist.runner", "popdist.horovod_build", "popdist.sdk",
    "popdist.checks", "popdist.startup",
)  # fmt: skip
# What reads a run afterwards stands beside the adapters: it may use the launcher.
SECOND_LAYER = ("popdist.report",)
FRAMEWORKS = {"torch", "tensorflow", "onnx", "onnxruntime", "onnx_ir", "horovod", "keras", "numpy"}

FILES = sorted(
    path
    for package in ("popdist", *sorted(ADAPTERS))
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module):
    if module.split(".")[0] in ADAPTERS or module in DOORS or module.startswith(SECOND_LAYER):
        return 2
    return 1 if module.startswith(FIRST_LAYER) else 0


def imports(path, *, at_start=False, with_types=False):
    """Modules that a file imports, those in functions included, those for types only if asked."""
    found = set()
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if (
            not with_types
            and isinstance(node, ast.If)
            and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        if not (at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            pending += ast.iter_child_nodes(node)
    return found


def test_imports_point_down():
    wrong = []
    for path in FILES:
        here = module_of(path)
        for target in imports(path):
            package = target.split(".")[0]
            if package not in {"popdist", *ADAPTERS}:
                continue
            if package not in (here.split(".")[0], "popdist") and here not in DOORS:
                wrong.append(f"{here} imports another adapter: {target}")
            if layer(target) > layer(here):
                wrong.append(f"{here} imports {target}, which lies above it")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_of(path): path for path in FILES}
    needs = {}
    for name, path in modules.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    found.add(whole if whole in modules else node.module)
        needs[name] = found & set(modules) - {name}
    # What imports nothing that is left can be taken away; circles are what remains.
    while free := {name for name in needs if not needs[name] & set(needs)}:
        needs = {name: found for name, found in needs.items() if name not in free}
    while unused := set(needs) - set().union(*needs.values()):
        needs = {name: found for name, found in needs.items() if name not in unused}
    assert sorted(needs) == []


def test_names_say_what_modules_are_for():
    vague = {"utils", "helpers", "common", "misc"}
    # The published trees have modules of these names.
    published = {"popdist_tf.ipu.utils", *(f"popdist_torch.geometric.{one}" for one in vague)}
    assert {module_of(path) for path in FILES if path.stem in vague} <= published


def test_the_core_and_the_launcher_load_no_framework():
    for path in FILES:
        here = module_of(path)
        if layer(here) < 2 and not here.startswith("popdist.exchange"):
            loaded = {name.split(".")[0] for name in imports(path, at_start=True)} & FRAMEWORKS
            assert not loaded, f"{here} imports {sorted(loaded)} when it is imported"


def test_the_launcher_needs_the_standard_library_only():
    ours = {"popdist", "__future__", *sys.stdlib_module_names}
    for path in FILES:
        if module_of(path).startswith("popdist.poprun"):
            others = {name.split(".")[0] for name in imports(path)} - ours
            assert not others - {"tomli"}, f"{module_of(path)} needs {sorted(others)}"


# The rooms of poprun, and which rooms the modules of each may import. What plans and starts reads
# from left to right (options, plan and machines, launch); what runs beside a program and what runs
# in poprun know only what they must agree on. Anything may use the records and the log.
ROOMS = {
    "protocol": set(),
    "machines": {"protocol"},  # reads the host it runs on, in poprun as in a guard
    "guard": {"protocol", "machines"},
    "supervisor": {"protocol"},
    "options": {"machines"},
    "plan": {"options", "machines", "protocol"},
    "partitions": {"machines", "protocol", "plan"},
    "output": {"options", "plan", "protocol", "supervisor"},
    "doctor": {"machines", "partitions", "plan", "protocol"},
    "nodes": {"options", "protocol"},  # before a job's hosts are known
}
# For types alone: records that are handed over.
FOR_TYPES = {
    "machines": {"options"},
    "supervisor": {"options", "plan", "output"},
}


def test_arrows_between_the_rooms_of_poprun_point_one_way():
    top = ROOT / "popdist" / "poprun"
    rooms = {path.name for path in top.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(ROOMS)
    wrong = []
    for room, allowed in ROOMS.items():
        for path in (top / room).glob("*.py"):
            for types, known in ((False, allowed), (True, allowed | FOR_TYPES.get(room, set()))):
                targets = room_imports(path, with_types=types) - known - {room}
                wrong += [f"{module_of(path)} imports {target}" for target in targets]
    assert not wrong


def room_imports(path, *, with_types):
    """The rooms of poprun that a file imports."""
    found = set()
    for name in imports(path, with_types=with_types):
        parts = name.split(".")
        if parts[:2] == ["popdist", "poprun"] and len(parts) > 2:
            found.add(parts[2])
    return found - {"log", "record", "secrets"}


def test_each_package_has_a_page_of_a_few_lines():
    for package in ("popdist", *sorted(ADAPTERS)):
        page = (ROOT / package / "README.md").read_text()
        assert len(page.splitlines()) <= 12
        named = re.findall(r"`([\w/]+(?:/|\.py))`", page)
        assert named
        assert all((ROOT / package / name).exists() for name in named), package
