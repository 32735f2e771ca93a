"""docs/steps.md: its tables of settings are made of the classes of the steps, and it has every step.

Run as a program, this module writes the tables into the page. `tests/pipeline/test_example_files.py` runs its examples.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from correlator.cli.codes import CODES
from correlator.configuration import json_schema
from correlator.configuration.setting_types import Setting, SettingType, settings_of, shorthand_of, type_of, word_of
from correlator.pipeline.headers import STANDARD_HEADERS
from correlator.pipeline.spec import Format, KeyedSettings, PipelineFile, Sql, Step

PAGE = Path(__file__).parents[2] / "docs" / "steps.md"
STEPS = {word_of(cls): cls for cls in get_args(Step)}
COMMON = "keyed steps"
"""The table of the settings that all keyed steps have."""
HEAD = "| setting | type | default | allowed values | meaning |\n|---|---|---|---|---|"
_TABLE = re.compile(r"(?<=<!-- settings: )(?P<name>[\w ]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)
_HEADING = re.compile(r"^## `(\w+)`$", re.MULTILINE)
_EXAMPLE = re.compile(r"^```yaml\n# \S+\.yaml\n.*?^```$", re.MULTILINE | re.DOTALL)

_definitions = json_schema(PipelineFile)["$defs"]


def published(page: str) -> str:
    """The page with its tables as they must be."""
    return _TABLE.sub(lambda match: f"{match['name']} -->\n{table(match['name'])}", page)


def table(name: str) -> str:
    """The settings of a step, or those that all keyed steps have."""
    common = settings_of(KeyedSettings)
    if name == COMMON:
        cls, settings = STEPS["aggregate"], common
    else:
        cls = STEPS[name]
        keyed = issubclass(cls, KeyedSettings)
        settings = tuple(one for one in settings_of(cls) if not (keyed and one in common))
    short = shorthand_of(cls) if name != COMMON else None
    rows = [row(cls, setting, shown_short(setting, short, len(settings))) for setting in settings]
    return "\n".join([HEAD, *rows, ""])


def shown_short(setting: Setting, short: Setting | None, settings: int) -> str:
    """The sentence about the short form of the setting that can be written without its name; empty for another one."""
    if setting != short:
        return ""
    if type_of(setting.annotation).is_mapping:
        return " The mapping may stand directly below the step."
    more = " if the step has no other setting" if settings > 1 else ""
    return f" Its value may stand directly after the step{more}."


def row(cls: type, setting: Setting, more: str) -> str:
    text = _definitions[cls.__name__]["properties"][setting.key]["description"]
    (type_,) = type_of(setting.annotation).alternatives
    cells = (f"`{setting.key}`", kind_of(type_), default_of(setting, type_), allowed(type_), text + more)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def kind_of(type_: SettingType) -> str:
    if type_.is_mapping:
        return f"mapping of names to {kind_of(type_of(type_.arguments[1]))}"
    if type_.is_list:
        return f"list of {kind_of(type_of(type_.arguments[0]))}"
    if type_.choices:
        return "one of the allowed values"
    if "import_path" in type_.marks:
        return "import path"
    if type_ == type_of(Sql):
        return "Spark SQL"
    return {bool: "boolean", str: "text", float: "duration"}[type_.bare]


def default_of(setting: Setting, type_: SettingType) -> str:
    value: Any = setting.default
    if setting.required:
        return "none: the setting is required"
    if value is None or isinstance(value, Mapping):
        return "none"
    if type_.bare is bool:
        return f"`{str(value).lower()}`"
    return f"`{value:g}s`" if isinstance(value, float) else f"`{value}`"


def allowed(type_: SettingType) -> str:
    if type_.choices:
        return ", ".join(f"`{choice}`" for choice in type_.choices)
    if type_.bare is bool:
        return "`true`, `false`"
    if "import_path" in type_.marks:
        return "`module:name`"
    if "identifier" in type_.marks:
        return f"{type_.min_length} to {type_.max_length} printable characters"
    if "unit" in type_.marks:
        return f"`{type_.ge:g}s` or more, with the unit `ms`, `s`, `m` or `h`"
    return "not empty" if type_.min_length else "any"


def test_the_tables_are_up_to_date():
    page = PAGE.read_text("utf-8")
    assert page == published(page), f"write them anew: python -m tests.docs.{Path(__file__).stem}"


def test_every_step_has_a_section_with_its_settings():
    page = PAGE.read_text("utf-8")
    assert _HEADING.findall(page) == list(STEPS)
    assert sorted(match["name"] for match in _TABLE.finditer(page)) == sorted([*STEPS, COMMON])


def test_every_step_and_every_format_has_an_example():
    page = PAGE.read_text("utf-8")
    examples = _EXAMPLE.findall(page)
    assert all("    given:" in one for one in examples)
    assert [word for word in STEPS if f"- {word}:" not in "".join(examples)] == []
    assert [name for name in get_args(Format) if f"format: {name}" not in page] == []


def test_the_codes_and_headers_are_those_of_the_product():
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"\b[EWI]\d{4}\b", page)) <= set(CODES)
    assert all(f"`{name}`" in page for name in STANDARD_HEADERS)


if __name__ == "__main__":
    PAGE.write_text(published(PAGE.read_text("utf-8")), "utf-8")
