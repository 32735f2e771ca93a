"""One zip file with the Python modules that Spark's workers need: those of correlator, and those of the user's steps.

A worker on another machine has neither the source of correlator nor the modules beside the pipeline file. Equal modules
give an equal file, byte for byte, so the name of the file can identify its content.
"""

import ast
import hashlib
import importlib.util
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path

from correlator.configuration import import_object
from correlator.errors import ConfigError
from correlator.pipeline.spec import DecodeStep, MonitorStep, PipelineSettings, PythonStep

_OWN = ("correlator", "connectors")
_INSTALLED = ("site-packages", "dist-packages")
_NATIVE = (*EXTENSION_SUFFIXES, ".so", ".pyd", ".dll", ".dylib")
_NEEDED = {"msgspec", "pyarrow"}
"""The third-party packages that the modules of correlator import in workers."""
_DECODERS = {"avro": "fastavro", "protobuf": "protobuf"}
"""The packages that decode bodies of these formats in workers."""
_TIME = (1980, 1, 1, 0, 0, 0)
_FILE, _DIRECTORY = 0o100644 << 16, 0o40755 << 16
_UNIX = 3


@dataclass(frozen=True, slots=True)
class Package:
    """The modules that workers need.

    Attributes:
        files: the path of each file by its name in the zip file.
        packages: the packages and modules at the top of the zip file.
        needed: packages that the zip file does not contain, and that the Python of the workers must have: the packages
            that are imported by the modules which this process has imported for the steps.
    """

    files: Mapping[str, Path]
    packages: Sequence[str]
    needed: Sequence[str]

    def write(self, path: Path) -> None:
        """Write the zip file. Raises `OSError`."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
            for name in _directories(self.files):  # without them, Python 3.11 finds no package that lacks __init__.py
                made.writestr(_entry(name, _DIRECTORY), b"")
            for name, source in sorted(self.files.items()):
                made.writestr(_entry(name, _FILE), source.read_bytes())

    def write_into(self, directory: Path) -> Path:
        """Write the zip file into a directory, under a name that another content does not have. Returns its path."""
        new = directory / "package.new"
        self.write(new)
        digest = hashlib.sha256(new.read_bytes()).hexdigest()[:16]
        return new.replace(directory / f"correlator-{digest}.zip")


def package_of(pipelines: Sequence[PipelineSettings], directories: Iterable[str] = ()) -> Package:
    """Find the modules that the steps of pipelines need in Spark's workers.

    These are `correlator`, the modules that steps name, and the modules of the user's own source that these import. The
    user's own source is everything that is neither a part of Python nor installed (in `site-packages`). A package is
    taken as a whole, but only its modules.

    Args:
        pipelines: the pipelines of a file.
        directories: further directories in which Python finds modules.

    Raises:
        ConfigError: E1501, a module that a step names cannot be imported; E1538, a part of the modules is native.
    """
    sys.path.extend(one for one in directories if one not in sys.path)
    files = dict(_files("correlator", Path(_OWN[0])))
    named: list[str] = []
    for path in _paths(pipelines):
        import_object(path)
        named.append(path.partition(":")[0].partition(".")[0])
    loaded = {str(getattr(module, "__file__", "")) for module in list(sys.modules.values())}
    packages, needed, waiting = {"correlator"}, {*_NEEDED, *_decoders(pipelines)}, [(top, True) for top in named]
    while waiting:
        top, is_used = waiting.pop()
        if top in packages or top in sys.stdlib_module_names or top == "__main__" or _spec(top) is None:
            continue
        found = _found(top, is_named=top in named)
        if found is None:
            needed |= {top} if is_used else set()
            continue
        packages.add(top)
        files |= found
        waiting += [(one, str(source) in loaded) for source in found.values() for one in _imported(source)]
    return Package(files, sorted(packages), sorted(needed))


def _decoders(pipelines: Iterable[PipelineSettings]) -> set[str]:
    """The packages that decode the bodies of these pipelines."""
    formats = {step.format for pipeline in pipelines for step in pipeline.steps if isinstance(step, DecodeStep)}
    return {_DECODERS[format_] for format_ in formats if format_ in _DECODERS}


def _paths(pipelines: Iterable[PipelineSettings]) -> Iterator[str]:
    for pipeline in pipelines:
        for step in pipeline.steps:
            if isinstance(step, MonitorStep):
                yield step.class_
            elif isinstance(step, PythonStep):
                yield step.function


def _found(top: str, *, is_named: bool) -> dict[str, Path] | None:
    """The files of a package or module. `None`: it is installed, and the workers need it installed, too.

    An installed package that a step names is packed, unless a part of it is native.
    """
    spec = _spec(top)
    assert spec is not None
    is_installed = any(one in _INSTALLED for place in _places(spec) for one in place.parts)
    if is_installed and not is_named and top not in _OWN:
        return None
    try:
        return dict(_files(top, Path(top)))
    except ConfigError:
        if is_installed:
            return None
        raise


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # a module that was made by hand
        return None


def _places(spec: ModuleSpec) -> list[Path]:
    """The directories of a package, or the file of a module."""
    if spec.submodule_search_locations is not None:
        return [Path(one) for one in spec.submodule_search_locations]
    return [Path(spec.origin or "")]


def _files(top: str, name: Path) -> Iterator[tuple[str, Path]]:
    """The files of a package or module by their names in the zip file. Raises `ConfigError` E1538."""
    spec = _spec(top)
    assert spec is not None
    for place in _places(spec):
        if place.is_dir():
            for path in sorted(place.rglob("*")):
                if not any(part.startswith(".") for part in path.relative_to(place).parts) and path.is_file():
                    yield from _module(name / path.relative_to(place), path)
        else:
            yield from _module(Path(place.name), place)


def _module(name: Path, path: Path) -> Iterator[tuple[str, Path]]:
    if path.name.endswith(_NATIVE):
        what = f"{path} is native code, which Python cannot import from a zip file"
        todo = "Make a package of its own of it, and install that in the Python of the engine and of the workers"
        raise ConfigError("E1538", "package", what, "Only modules written in Python can be packed", todo)
    if path.suffix == ".py":
        yield name.as_posix(), path


def _imported(path: Path) -> Iterator[str]:
    """The top-level packages that a module imports, anywhere in its text."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # no module that anything imports
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _directories(names: Iterable[str]) -> list[str]:
    parents = {parent.as_posix() for name in names for parent in Path(name).parents}
    return sorted(f"{one}/" for one in parents if one != ".")


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    """An entry that is the same on each machine."""
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system, entry.external_attr = _UNIX, mode
    return entry
