"""Facts about the source that must stay true (docs/architecture.md): who imports whom, what the core may not know."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.harness.points import points

ROOT = Path(__file__).parent.parent
PACKAGES = ("correlator", "connectors", "pyspark_correlator")

GROUND = {
    "connector",
    "durable",
    "errors",
    "events",
    "handlers",
    "processes",
    "reliability",
    "secrets",
    "selector",
    "serving",
    "settings",
    "tracing",
}
"""Values, and the port of connectors: modules that import nothing of `correlator`, or one another."""
LAYERS = {
    "errors": {"secrets"},
    "durable": set(),
    "reliability": set(),
    "secrets": set(),
    "processes": {"durable", "errors"},
    "events": {"errors"},
    "handlers": {"errors"},
    "selector": {"events", "errors"},
    "serving": {"errors", "processes"},
    "settings": {"reliability"},
    "tracing": {"events"},
    "connector": {"events", "errors", "settings"},
    "core": {"connector", "events", "errors", "handlers", "reliability", "secrets", "selector", "settings"},
    "ports": {"core"},
    "configuration": {"connector", "events", "errors", "reliability", "secrets", "selector", "settings"},
    "options": {"configuration", "errors"},
    "storage": GROUND | {"core"},
    "runtime": GROUND | {"storage", "configuration", "ports", "core"},
    "pipeline": GROUND | {"runtime", "configuration", "ports", "core"},
    "cli": GROUND | {"pipeline", "runtime", "storage", "configuration", "ports", "core"},
}
"""What each part of `correlator` may import besides itself. `testing` may import all; nothing may import `testing`."""
OPEN_TO_CONNECTORS = GROUND | {
    "options",
    "pipeline.ddl",
    "storage.database",
    "storage.dialects",
    "storage.files",
    "storage.postgres",
    "storage.revising",
    "storage.sqlite",
}
"""What connectors may import of `correlator`."""
OPEN_TO_SPARK_PROGRAMS = {f"correlator.{name}" for name in GROUND | {"options", "pipeline.headers", "storage"}} | {
    "connectors.embedded.batches"
}
"""What the format of Spark may import. It is a package of its own, since PySpark finds a format by the name of its
package, and since it needs both of the others: it reads stores, and writes into queues."""

IMPURE = {
    "time",
    "random",
    "uuid",
    "threading",
    "os",
    "logging",
    "secrets",
    "socket",
    "subprocess",
    "asyncio",
    "structlog",
}
ONLY_IN = {
    "pyspark": {"correlator/pipeline", "pyspark_correlator"},
    "pyarrow": {
        "correlator/pipeline",
        "connectors/lake",
        "connectors/objects",
        "connectors/table_columns.py",
        "connectors/table_rows.py",
    },
    "boto3": {"connectors/objects/bucket.py"},
    "botocore": {"connectors/objects/bucket.py"},
    "fastavro": {"correlator/pipeline", "connectors/avro"},
    "google": {"correlator/pipeline", "connectors/kafka/protobuf.py"},
    "deltalake": {"connectors/lake"},
    "sqlalchemy": {
        "correlator/storage",
        "connectors/embedded",
        "connectors/sql",
        "correlator/testing/kill9/stores.py",
    },
    "alembic": {"correlator/storage", "correlator/cli/db.py", "connectors/embedded"},
    "psycopg": {"correlator/storage", "connectors/embedded", "connectors/sql"},
    "pymysql": {"connectors/sql"},
    "pika": {"connectors/rabbitmq/"},
    "uvicorn": {"correlator/serving.py", "connectors/http"},
    "h11": {"connectors/http"},
    "rstream": {"connectors/rabbitmq_stream"},
    "pulsar": {"connectors/pulsar"},
    "confluent_kafka": {"connectors/kafka"},
    "typer": {"correlator/cli", "correlator/testing/command.py", "correlator/testing/bench.py"},
    "rich": {"correlator/cli"},
    "opentelemetry": {"correlator/runtime/spans.py"},
    "yaml": {"correlator/configuration"},
    "structlog": {"correlator/runtime", "correlator/cli", "correlator/testing"},
}
ALLOWED_UUID_TYPES = {"correlator/core/state.py"}
"""`state` names the type UUID among the types that state may have; it makes no UUID."""


class Import(NamedTuple):
    """One imported module, and where."""

    file: str
    line: int
    module: str
    in_function: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> list[Import]:
    return list(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    inner = {
        id(node)
        for function in ast.walk(tree_of(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name_of(path)}:{node.lineno} imports relatively"
            base = node.module or ""
            modules = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            yield Import(name_of(path), node.lineno, module, id(node) in inner)


def all_imports(*packages: str) -> list[Import]:
    return [one for path in sources(*packages) for one in imports(path)]


def part_of(file: str) -> str:
    """`core` of `correlator/core/dedup.py`, `errors` of `correlator/errors.py`."""
    return file.split("/")[1].removesuffix(".py")


def test_every_part_is_known():
    parts = {part_of(name_of(path)) for path in sources("correlator")}
    assert parts - {"__init__", "testing"} == set(LAYERS)


def test_imports_point_in_one_direction():
    wrong = [
        str(one)
        for one in all_imports("correlator")
        if (part := part_of(one.file)) in LAYERS and one.module.startswith("correlator.")
        if (target := one.module.split(".")[1]) != part and target not in LAYERS[part]
    ]
    assert wrong == []


def test_product_code_never_imports_testing():
    wrong = [
        str(one)
        for one in all_imports(*PACKAGES)
        if one.module.startswith("correlator.testing") and not one.file.startswith("correlator/testing/")
    ]
    assert wrong == []


def test_nothing_that_is_shipped_imports_the_tests():
    assert [str(one) for one in all_imports(*PACKAGES) if one.module.split(".")[0] == "tests"] == []


def test_the_test_tools_of_users_know_nothing_of_the_test_application():
    """What judges the monitors and events of this application is in `tests/harness`."""
    application = tree_of(ROOT / "tests" / "harness" / "simulation" / "application.py")
    classes = {node.name for node in application.body if isinstance(node, ast.ClassDef)}
    assert {"Ledger", "Audit", "Sleeper"} <= classes
    wrong = [
        f"{name_of(path)}:{node.lineno} names {node.value}"
        for path in sources("correlator/testing")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in classes
    ]
    assert wrong == []


def test_the_engine_knows_no_connector():
    """Connectors are found by entry point, so that others can add theirs."""
    assert [str(one) for one in all_imports("correlator") if one.module.split(".")[0] == "connectors"] == []


def test_connectors_see_ports_and_values_only():
    wrong = [
        str(one)
        for one in all_imports("connectors")
        if one.module.startswith("correlator.")
        and not f"{one.module}.".startswith(tuple(f"correlator.{name}." for name in OPEN_TO_CONNECTORS))
    ]
    assert wrong == []


def test_the_format_of_spark_sees_stores_and_batches_only():
    wrong = [
        str(one)
        for one in all_imports("pyspark_correlator")
        if one.module.split(".")[0] in ("correlator", "connectors")
        and not f"{one.module}.".startswith(tuple(f"{name}." for name in OPEN_TO_SPARK_PROGRAMS))
    ]
    assert wrong == []


def test_nobody_imports_the_format_of_spark():
    wrong = [one for one in all_imports("correlator", "connectors") if one.module.startswith("pyspark_correlator")]
    assert [str(one) for one in wrong] == []


def test_the_page_of_the_architecture_states_the_rules_of_imports():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("\n| package or module | what is in it | may import |\n")[2].partition("\n\n")[0]
    stated = {}
    for line in table.splitlines()[1:]:
        part, _, allowed = line.strip("|").split(" | ")
        names = set(re.findall(r"`([\w.]+)`", allowed))
        stated[part.strip(" `")] = names | GROUND if "the ground" in allowed else names
    format_of_spark = {
        f"correlator.{name}" if not name.startswith("connectors.") else name
        for name in stated.pop("pyspark_correlator")
    }
    assert format_of_spark == OPEN_TO_SPARK_PROGRAMS
    assert list(stated)[: len(GROUND)] == sorted(GROUND, key=list(LAYERS).index)
    assert stated == {**LAYERS, "connectors": OPEN_TO_CONNECTORS}


def test_sessions_know_no_broker():
    wrong = [
        str(one)
        for one in all_imports("connectors/messaging")
        if one.module.startswith("connectors")
        and not one.module.startswith(("connectors.messaging", "connectors.kinds"))
    ]
    assert wrong == []


def test_u10_a_foreign_package_is_imported_in_its_place_only():
    wrong = [
        str(one)
        for one in all_imports(*PACKAGES)
        if (places := ONLY_IN.get(one.module.split(".")[0])) is not None and not one.file.startswith(tuple(places))
    ]
    assert wrong == []


def test_no_import_of_ours_hides_in_a_function():
    wrong = [str(one) for one in all_imports(*PACKAGES) if one.in_function and one.module.split(".")[0] in PACKAGES]
    assert wrong == []


# --- the core is pure ---


def test_the_core_knows_no_clock_chance_thread_or_log():
    wrong = [
        str(one)
        for one in all_imports("correlator/core")
        if one.module.split(".")[0] in IMPURE and not (one.module == "uuid" and one.file in ALLOWED_UUID_TYPES)
    ]
    assert wrong == []


def test_the_core_makes_no_uuid_and_asks_no_clock():
    forbidden = {"uuid1", "uuid3", "uuid4", "uuid5", "now", "utcnow", "today", "open", "print", "input"}
    wrong = [
        f"{name_of(path)}:{node.lineno} calls {called}"
        for path in sources("correlator/core")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and (called := _called(node)) in forbidden
    ]
    assert wrong == []


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def test_the_core_iterates_over_no_set():
    """The order of a set of text differs between processes: the same seed would give another history."""
    wrong = [
        f"{name_of(path)}:{iterated.lineno}"
        for path in sources("correlator/core")
        for function in ast.walk(tree_of(path))
        if isinstance(function, ast.FunctionDef)
        for iterated in _iterated(function)
        if _is_set(iterated, _names_of_sets(function))
    ]
    assert wrong == []


def _iterated(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.iter
        elif isinstance(node, ast.Call) and _called(node) in (
            "list",
            "tuple",
            "enumerate",
            "iter",
            "zip",
            "map",
            "join",
        ):
            yield from node.args
        elif isinstance(node, ast.Starred | ast.YieldFrom):
            yield node.value


def _names_of_sets(function: ast.FunctionDef) -> set[str]:
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _is_set(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        return _called(node) in ("set", "frozenset", "union", "intersection", "difference")
    return isinstance(node, ast.Name) and node.id in names


# --- fault points ---


def test_fault_points_have_names_of_their_own():
    assert [name for name, count in Counter(one.name for one in points()).items() if count > 1] == []


def test_there_are_fault_points_on_every_way():
    families = {one.name.split(".")[0] for one in points()}
    assert families >= {"rx", "ck", "tx", "rec", "cfg", "ac", "app", "flush", "stop"}


# --- large classes ---


class Size(NamedTuple):
    """How large a class is: its own attributes, those with the inherited ones, the parameters of its constructor.

    A class without a constructor of its own has `None` parameters.
    """

    own: int
    whole: int
    parameters: int | None

    @property
    def is_large(self) -> bool:
        return self.whole > 20 or (self.parameters or 0) > 12


@functools.cache
def classes() -> dict[str, ast.ClassDef]:
    """All classes on the top level of modules, by module and name."""
    return {
        f"{module_of(path)}.{node.name}": node
        for path in sources(*PACKAGES)
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
    }


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The fields of a value, and what methods assign to `self`."""
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and "ClassVar" not in ast.dump(one)
    }
    return fields | {
        one.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for one in ast.walk(method)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if isinstance(one.value, ast.Name) and one.value.id == "self"
    }


def bases_of(name: str) -> Iterator[str]:
    """The bases of a class that are classes of ours."""
    module = name.rpartition(".")[0]
    place = ROOT / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    imported = {one.module.rpartition(".")[2]: one.module for one in imports(path)}
    for base in classes()[name].bases:
        said = ast.unparse(base).partition("[")[0]
        first, _, rest = said.partition(".")
        for full in (f"{module}.{said}", ".".join(filter(None, (imported.get(first, first), rest)))):
            if full in classes():
                yield full


def with_inherited(name: str) -> set[str]:
    return attributes_of(classes()[name]).union(*map(with_inherited, bases_of(name)))


def size_of(name: str) -> Size:
    makers = [one for one in classes()[name].body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    parameters = [len([*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs]) - 1 for one in makers]
    return Size(len(attributes_of(classes()[name])), len(with_inherited(name)), next(iter(parameters), None))


def test_the_page_of_the_architecture_lists_the_large_classes():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("\n## Large classes\n")[2]
    row = r"^\| `(\w+)` \(`([\w/]+)\.py`\) \| (\d+) \| (\d+) \| (\S+) \| \w.*\w.* \|$"
    stated = {
        f"{file.replace('/', '.')}.{name}": Size(
            int(own), int(whole), int(parameters) if parameters.isdigit() else None
        )
        for name, file, own, whole, parameters in re.findall(row, page, re.MULTILINE)
    }
    receiver, engine = "correlator.runtime.receiver.Receiver", "correlator.testing.kill9.child.ToldEngine"
    assert with_inherited(receiver) > attributes_of(classes()["correlator.runtime.actor.Actor"])
    assert with_inherited(engine) > attributes_of(classes()["correlator.runtime.engine.Engine"])
    assert stated == {name: size for name in classes() if (size := size_of(name)).is_large}


# --- what must not be there ---


def test_nothing_is_unpickled_or_evaluated():
    wrong = [
        str(one)
        for one in all_imports(*PACKAGES)
        if one.module.split(".")[0] in ("pickle", "marshal", "shelve", "dill", "cloudpickle")
    ]
    wrong += [
        f"{name_of(path)}:{node.lineno} calls {node.func.id}"
        for path in sources(*PACKAGES)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("eval", "exec", "compile")
    ]
    assert wrong == []


def test_threads_do_not_let_msgspec_see_a_class_first():
    """msgspec ends the process if two threads decode into a class that no decoder was made for before."""
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources(
            "correlator/core", "correlator/runtime", "correlator/storage", "correlator/pipeline", "connectors"
        )
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and _called(node) in ("decode", "convert")
        for one in node.keywords
        if one.arg == "type" and isinstance(one.value, ast.Name) and one.value.id.lstrip("_")[:1].isupper()
    ]
    replays = "correlator/runtime/replay.py"  # has one thread
    assert [one for one in wrong if not one.startswith(replays)] == []


def test_the_top_level_is_as_documented():
    documented = {
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "correlator",
        "connectors",
        "pyspark_correlator",
        "config",
        "tests",
        "docs",
    }
    there = {path.name for path in ROOT.iterdir() if not path.name.startswith((".", "__")) and not _only_caches(path)}
    assert there - {"dist", "build"} <= documented


def _only_caches(path: Path) -> bool:
    """Whether it is a directory that was removed, and holds nothing but what Python compiled there."""
    return path.is_dir() and all(one.is_dir() or one.suffix == ".pyc" for one in path.rglob("*"))


def test_every_package_says_why_it_exists():
    """The first thing in every module is its docstring."""
    wrong = [name_of(path) for path in sources(*PACKAGES) if not ast.get_docstring(tree_of(path))]
    assert wrong == []
