"""The pages below docs/reference, made from the code. Run as a program, this module writes them."""

import importlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from correlator.cli.codes import CODES, FAMILIES, SEVERITIES
from correlator.cli.main import COMMANDS
from correlator.configuration.schema import descriptions, summary
from correlator.configuration.setting_types import SettingType, settings_of, type_of, word_of
from correlator.pipeline.spec import PipelineFile

PLACE = Path(__file__).parents[2] / "docs" / "reference"
_NAMES = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", Any: "any value"}
_ABOUT_SETTINGS = (
    "A configuration file is a YAML mapping. This page lists every setting, made from the code that reads the file. "
    "A *duration* is a number with a unit: `ms`, `s`, `m` or `h`. A *size* is one with `B`, `KiB`, `MiB` or `GiB`. "
    "`${NAME}` in a value stands for a variable of the environment, `${NAME:DEFAULT}` has a default, and "
    "`${file:/PATH}` stands for the content of a file. [config/schema.json](../../config/schema.json) is the same "
    "for editors."
)
_ABOUT_COMMANDS = (
    "Every command with its arguments and options, made from the code. [Commands](../commands.md) says which "
    "command answers which question, and what the exit statuses mean."
)
_ABOUT_CODES = (
    "Each message of correlator begins with a code. `correlator explain CODE` prints the same sentence. The first "
    f"letter is the severity: {', '.join(f'`{letter}` {name}' for letter, name in SEVERITIES.items())}."
)


def pages() -> Mapping[str, str]:
    """The pages, by the names of their files."""
    return {"settings.md": _settings(), "commands.md": _commands(), "codes.md": _codes()}


# --- settings ---


def _settings() -> str:
    text = [
        "# Settings",
        _ABOUT_SETTINGS,
    ]
    found = sections()
    for cls, path in found.items():
        text += [f"## {_title(path)}", summary(cls), _table(cls, found)]
    return _joined(text)


def sections() -> dict[type, str]:
    """Each class of settings with the place in the file where it comes first, in the order of the file."""
    found: dict[type, str] = {PipelineFile: ""}
    open_ = deque(found)
    while open_:
        cls = open_.popleft()
        for setting in settings_of(cls):
            for inner, path in _inner(type_of(setting.annotation), f"{found[cls]}.{setting.key}".lstrip(".")):
                if inner not in found:
                    found[inner] = path
                    open_.append(inner)
    return found


def _inner(type_: SettingType, path: str) -> Iterator[tuple[type, str]]:
    """Yield the classes in a type."""
    several = sum(one.is_settings for one in type_.alternatives) > 1
    for one in type_.alternatives:
        if one.is_settings:
            yield one.bare, f"{path}.{word_of(one.bare)}" if several else path
        elif one.is_list:
            yield from _inner(type_of(one.arguments[0]), f"{path}[]")
        elif one.is_mapping:
            yield from _inner(type_of(one.arguments[1]), f"{path}.NAME")


def _title(path: str) -> str:
    return f"`{path}`" if path else "The file"


def _anchor(path: str) -> str:
    """The anchor of a section, as MyST makes it."""
    return "the-file" if not path else re.sub(r"[^\w\- ]", "", path.lower())


def _table(cls: type, sections: Mapping[type, str]) -> str:
    texts = descriptions(cls)
    rows = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    for setting in settings_of(cls):
        type_ = type_of(setting.annotation)
        if type_.marks.get("remaining_keys"):
            continue
        default = "required" if setting.required else _default(setting.default, type_)
        rows.append(f"| `{setting.key}` | {_value(type_, sections)} | {default} | {_cell(texts[setting.attribute])} |")
    return "\n".join(rows)


def _value(type_: SettingType, sections: Mapping[type, str]) -> str:
    """What a setting may be."""
    return " or ".join(dict.fromkeys(_single(one, sections) for one in type_.alternatives))


def _single(type_: SettingType, sections: Mapping[type, str]) -> str:
    if type_.is_settings:
        path = sections[type_.bare]
        return f"[{path.rpartition('.')[2].removesuffix('[]')}](#{_anchor(path)})"
    if type_.is_list:
        return f"list: {_value(type_of(type_.arguments[0]), sections)}"
    if type_.is_mapping:
        return f"by name: {_value(type_of(type_.arguments[1]), sections)}"
    if type_.choices:
        return ", ".join(f"`{one}`" for one in type_.choices)
    if "import_path" in type_.marks:
        return "`module:name`"
    name = type_.marks.get("unit") or _NAMES.get(type_.bare, "")
    return f"{name}{_limits(type_)}"


def _limits(type_: SettingType) -> str:
    if type_.max_length is not None:
        return f", {type_.min_length or 0} to {type_.max_length} characters"
    if type_.min_length is not None:
        return f", {type_.min_length} characters or more"
    show = _shown_in(type_)
    if type_.ge is not None and type_.le is not None:
        return f", {show(type_.ge)} to {show(type_.le)}"
    if type_.ge is not None:
        return f", {show(type_.ge)} or more"
    if type_.gt is not None:
        return f", more than {show(type_.gt)}"
    return "" if type_.le is None else f", at most {show(type_.le)}"


def _shown_in(type_: SettingType) -> Any:
    unit = type_.marks.get("unit")
    return {"duration": _duration, "size": _size}.get(unit or "", lambda value: f"{value:,}")


def _duration(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def _size(number: float) -> str:
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if number >= unit and number % unit == 0:
            return f"{number / unit:g}{name}"
    return f"{number:g}B"


def _default(value: Any, type_: SettingType) -> str:
    if value is None or value in ((), {}, ""):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"`{_shown_in(next(iter(type_.alternatives)))(value)}`"
    return f"`{value}`" if isinstance(value, str) else "its defaults"


# --- commands ---


def _commands() -> str:
    text = [
        "# Command line",
        _ABOUT_COMMANDS,
    ]
    for one in COMMANDS:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        importlib.import_module(one.module).add_to(app)
        app.callback()(lambda: None)
        parser: Any = typer.main.get_command(app)  # its classes have no public names
        text += _command(one.name, parser.commands[one.name])
    return _joined(text)


def _command(name: str, command: Any) -> Iterator[str]:
    """Yield the parts of a command, or of the subcommands of a group."""
    if hasattr(command, "commands"):
        for inner in command.commands.values():
            yield from _command(f"{name} {inner.name}", inner)
        return
    context = command.make_context(f"correlator {name}", [], resilient_parsing=True)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield f"## {name}"
    yield f"```\n{usage}\n```"
    yield _cell(command.help).replace(r"\|", "|")
    rows = [row for one in command.params if (row := _parameter(one, context))]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def _parameter(one: Any, context: Any) -> str:
    record = one.get_help_record(context)
    if record is None or one.name == "help":
        return ""
    name = record[0] if one.param_type_name == "option" else record[0].partition(" ")[0]
    return f"| `{_cell(name)}` | {_cell(record[1])} |"


# --- codes ---


def _codes() -> str:
    text = [
        "# Codes",
        _ABOUT_CODES,
    ]
    for digit, family in FAMILIES.items():
        rows = [f"| `{code}` | {_cell(CODES[code])} |" for code in sorted(CODES, key=_number) if code[1] == digit]
        text += [f"## {family.capitalize()}", "\n".join(["| code | meaning |", "|---|---|", *rows])]
    return _joined(text)


def _number(code: str) -> tuple[str, str]:
    return code[1:], code[0]


# --- text ---


def _cell(text: str) -> str:
    """A text in one line, with links from this directory."""
    line = " ".join(text.split()).replace("|", r"\|")
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", line)


def _joined(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for name, content in pages().items():
        (PLACE / name).write_text(content)
