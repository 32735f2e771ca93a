"""Mutations of configuration files: of their text, and of the values that they hold."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import yaml

BACKTRACKING = ("(a+)+$", "(a|aa)+b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*x", "(?=(a+))a*b", "(?P<x>a", "[", "\\")
SELECTORS = (
    "a = 1 AND",
    "(" * 60 + "a = 1" + ")" * 60,
    "NOT " * 200 + "a = 1",
    " AND ".join(f"a{n} = {n}" for n in range(300)),
    "a LIKE '" + "%a" * 100 + "' ESCAPE '\\'",
    "a IN (" + ", ".join(f"'{n}'" for n in range(500)) + ")",
    "a BETWEEN 1e999 AND -1e999",
    "a = 'it''s' OR b IS NOT NULL",
    "1" * 400 + " = a",
)
DDL = (
    "a INT, b STRING",
    "a INT a INT",
    "a STRUCT<" * 80 + "x: INT" + ">" * 80,
    "a ARRAY<MAP<STRING, STRUCT<b: DECIMAL(99, 99)>>>",
    "`a``b` INT COMMENT 'x'",
    "a DECIMAL(38, 39)",
    ", ".join(f"c{n} INT" for n in range(800)),
    '{"type": "record", "name": "r", "fields": [{"name": "r", "type": "r"}]}',
)
EXPRESSIONS = (
    "a + ",
    "(" * 200 + "a" + ")" * 200,
    "a" + " + a" * 2000,
    "CASE WHEN a THEN b END",
    "count(*) FILTER (WHERE a)",
    "`a`.`b`['c'][0]",
    "a RLIKE '(x+)+y'",
    "sum(a) OVER (PARTITION BY b)",
    "interval 1 day",
    "x -> x",
)
TEMPLATES = (
    "${body.a.b[0]}",
    "${row.",
    "${}",
    "${A}${A}",
    "$${x}",
    "${file:/dev/zero}",
    "${file:/etc/passwd}",
    "${env:A:${A}}",
    "${share}",
    "${property.x}" * 300,
    "${A:" + "x" * 5000 + "}",
)
PATHS = (
    "os:system",
    "builtins:eval",
    "json:JSONDecoder",
    "no.such:Thing",
    "a:b:c",
    ":",
    "json:",
    "json:dumps.x",
    "..x:y",
)
ADDRESSES = (
    "sqlite:///x.db",
    "sqlite://",
    "postgresql://u:p@h:99999/d",
    "postgresql://[::1/d",
    "mysql://h",
    "amqp://" + "a" * 3000,
    "://",
    "http://\u2024/",
    "sqlite:///x?mode=memory",
    "queue:",
    "topic:a*",
    "queue:../../etc/passwd",
    "queue:" + "q" * 3000,
)
NUMBERS = (
    0,
    -1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    1.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "1e999",
    "0x_1",
    "017",
    "1:30:15",
)
TEXTS = (
    "",
    " ",
    "x" * 20_000,
    "\u202e\u200b\ufeff",
    "\U0001f600" * 50,
    "e\u0301",
    "null",
    "~",
    "on",
    "yes",
    "2013-01-01",
    "-",
    "*",
    "&a",
    "!x",
    "'",
    '"',
    "a\nb",
    "\t",
    "5s",
    "-5s",
    "1e99h",
    "64KiB",
    "99999999999EiB",
    "EXACTLY_ONCE",
    "BEST_EFFORT",
    "APP_CONTROLLED",
    "__class__",
    "{0.__class__}",
    "%s%n",
    "$(id)",
    "'; DROP TABLE engine; --",
)
STRUCTURES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {"": ""},
    ["x"] * 300,
    {"id": "x"},
    [{}] * 50,
)


def deep(random: Random) -> Any:
    """A value that is nested deeply."""
    value: Any = "x"
    for _ in range(random.choice((10, 45, 60, 300))):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def odd(random: Random) -> Any:
    """A value that hardly any setting expects."""
    kinds: Sequence[Sequence[Any]] = (
        BACKTRACKING, SELECTORS, DDL, EXPRESSIONS, TEMPLATES, PATHS, ADDRESSES, NUMBERS, TEXTS, STRUCTURES,
    )  # fmt: skip
    if random.random() < 0.03:
        return deep(random)
    return deepcopy(random.choice(random.choice(kinds)))  # a later change must not change what all cases choose from


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values below a value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        found += places(one, (*path, key))
    return found


def changed(random: Random, value: Any, every: Sequence[Any]) -> Any:
    """Change one to four places: another value, one of another file, one place less, one twice, another key."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        found = places(value)
        if not found:
            return odd(random)
        path = random.choice(found)
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        _change(random, holder, path[-1], every)
    return value


def _change(random: Random, holder: Any, key: Any, every: Sequence[Any]) -> None:
    kind = random.randrange(8)
    if kind < 4:
        holder[key] = odd(random)
    elif kind == 4:
        other = random.choice(every)
        found = places(other)
        for step in random.choice(found) if found else ():
            other = other[step]
        holder[key] = json.loads(json.dumps(other, default=str))
    elif kind == 5:
        del holder[key]
    elif isinstance(holder, list):
        holder[key:key] = [json.loads(json.dumps(holder[key], default=str))] * random.choice((1, 2, 200))
    else:
        holder[str(odd(random))[:100] if random.random() < 0.5 else f"{key}x"] = holder.pop(key)


def _billion_laughs(_: Random, text: str) -> str:
    lines = ['a: &a ["lol","lol","lol","lol","lol","lol","lol","lol","lol"]']
    lines += [f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    return "\n".join(lines) + "\n" + text


def _repeated_line(random: Random, text: str) -> str:
    lines = text.split("\n")
    at = random.randrange(len(lines))
    lines[at:at] = [lines[at]] * random.choice((1, 2, 50))
    return "\n".join(lines)


def _lost_line(random: Random, text: str) -> str:
    lines = text.split("\n")
    del lines[random.randrange(len(lines))]
    return "\n".join(lines)


def _moved_line(random: Random, text: str) -> str:
    lines = text.split("\n")
    at = random.randrange(len(lines))
    lines[at] = " " * random.randrange(9) + lines[at].lstrip()
    return "\n".join(lines)


def _inserted(random: Random, text: str) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] + str(odd(random)) + text[at:]


def _cut(random: Random, text: str) -> str:
    return text[: random.randrange(len(text) + 1)]


def _marks(random: Random, text: str) -> str:
    at = random.randrange(len(text) + 1)
    mark = random.choice(("&a ", "*a ", "<<: ", "!!python/object:os.system ", "!x ", "? ", "- ", "---\n", "...\n", "%YAML 9.9\n",
                          "{", "}", "[", "]", "|", ">", "'", '"', "#", "\t", "\0", "\r", "\u2028", "\x85", "\ud800"))  # fmt: skip
    return text[:at] + mark * random.choice((1, 1, 2, 500)) + text[at:]


TEXTUAL: tuple[Callable[[Random, str], str], ...] = (
    _billion_laughs, _repeated_line, _lost_line, _moved_line, _inserted, _cut, _marks,
)  # fmt: skip


def file(random: Random, texts: Sequence[str], values: Sequence[Any]) -> bytes:
    """A file: a mutation of one of the texts or of one of the values."""
    if random.random() < 0.6:
        value = changed(random, json.loads(json.dumps(random.choice(values), default=str)), values)
        as_json = random.random() < 0.3
        try:
            text = json.dumps(value) if as_json else yaml.safe_dump(value, allow_unicode=True, width=200)
        except RecursionError:  # deeper than PyYAML can write; `changed` can make such a value
            text = "[" * 1000 + "]" * 1000
    else:
        text = random.choice(texts)
        for _ in range(random.choice((1, 1, 2, 5))):
            text = random.choice(TEXTUAL)(random, text)
    content = text.encode("utf-8", errors="surrogatepass")
    return damaged(random, content) if random.random() < 0.1 else content


def damaged(random: Random, content: bytes) -> bytes:
    """Bytes that are no longer what a program would have written."""
    kind = random.randrange(4)
    at = random.randrange(len(content) + 1)
    if kind == 0:
        return content[:at] + random.randbytes(random.choice((1, 4, 100))) + content[at:]
    if kind == 1:
        return b"\xff\xfe" + content
    if kind == 2:
        return content.decode("utf-8", errors="replace").encode("utf-16")
    return bytes(one ^ (random.random() < 0.01) << random.randrange(8) for one in content)
