"""Compiles texts of protobuf to descriptor sets and classes, so that no test needs the compiler of protobuf.

The grammar is that of the texts in tests and on docs/steps.md, one statement to a line end or `;`.
"""

import re
from pathlib import Path

from google.protobuf import duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message_factory import GetMessages

KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_TOKEN = re.compile(r'//.*|"[^"]*"|[\w.]+|[{}<>=;,\[\]]')


def compiled(text, directory, *, imports=True):
    """The path of a descriptor set of a text."""
    path = Path(directory) / "one.desc"
    path.write_bytes(_set_of(text, imports=imports).SerializeToString())
    return path


def classes(descriptor):
    """The classes of the messages of a descriptor set, by full name."""
    found = FileDescriptorSet()
    found.ParseFromString(Path(descriptor).read_bytes())
    return GetMessages(found.file)


def _set_of(text, *, imports):
    file = _Parser(text).file()
    found = FileDescriptorSet()
    for name in file.dependency if imports else ():
        KNOWN[name].CopyToProto(found.file.add())
    found.file.append(file)
    return found


class _Parser:
    """Reads the tokens of a text from left to right."""

    def __init__(self, text):
        self._tokens = [one for one in _TOKEN.findall(text) if not one.startswith("//")]
        self._file = FileDescriptorProto(name="one.proto")
        self._enums = set(re.findall(r"enum (\w+)", text))

    def file(self):
        while self._tokens:
            match self._take():
                case "syntax":
                    self._file.syntax = self._quoted("=")
                case "package":
                    self._file.package = self._take()
                case "import":
                    self._file.dependency.append(self._quoted())
                case "enum":
                    self._enum(self._file.enum_type.add())
                case "message":
                    self._message(self._file.message_type.add())
                case "extend":
                    self._extend()
        return self._file

    def _take(self, wanted=None):
        token = self._tokens.pop(0)
        assert wanted in (None, token), (wanted, token)
        return token

    def _quoted(self, before=None):
        if before:
            self._take(before)
        return self._take()[1:-1]

    def _enum(self, enum: EnumDescriptorProto):
        enum.name = self._take()
        self._take("{")
        while (name := self._take()) != "}":
            self._take("=")
            enum.value.add(name=name, number=int(self._take()))
            self._take(";")

    def _message(self, message: DescriptorProto, name=None):
        message.name = name or self._take()
        self._take("{")
        while (token := self._take()) != "}":
            match token:
                case "enum":
                    self._enum(message.enum_type.add())
                case "message":
                    self._message(message.nested_type.add())
                case "map":
                    self._map(message)
                case "oneof":
                    message.oneof_decl.add(name=self._take())
                    self._take("{")
                    while (kind := self._take()) != "}":
                        self._field(message.field.add(oneof_index=len(message.oneof_decl) - 1), 1, kind)
                case "extensions":
                    first = int(self._take())
                    self._take("to")
                    message.extension_range.add(start=first, end=int(self._take()) + 1)
                    self._take(";")
                case _ if token in _LABELS:
                    self._labelled(message, token)
                case _:
                    self._field(message.field.add(), 1, token)
        for field in message.field:
            if field.proto3_optional:  # a oneof of its own, behind all others, stands for the presence of the field
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _labelled(self, message, label):
        kind = self._take()
        if kind == "group":
            name = self._take()
            self._take("=")
            number = int(self._take())
            self._message(message.nested_type.add(), name)
            group = FieldDescriptorProto.TYPE_GROUP
            message.field.add(name=name.lower(), number=number, label=_LABELS[label], type=group, type_name=name)
            return
        field = message.field.add()
        if label == "optional" and self._file.syntax == "proto3":
            field.proto3_optional = True
        self._field(field, _LABELS[label], kind)

    def _map(self, message):
        self._take("<")
        entry = DescriptorProto()
        entry.options.map_entry = True
        self._typed(entry.field.add(name="key", number=1, label=1), self._take())
        self._take(",")
        self._typed(entry.field.add(name="value", number=2, label=1), self._take())
        self._take(">")
        field = message.field.add(label=3, name=self._tokens[0])
        entry.name = "".join(part.title() for part in field.name.split("_")) + "Entry"
        message.nested_type.append(entry)
        self._field(field, 3, entry.name)

    def _field(self, field, label, kind):
        field.label = label
        self._typed(field, kind)
        field.name = self._take()
        self._take("=")
        field.number = int(self._take())
        if self._tokens[0] == "[":
            self._take("[")
            self._take("default")
            self._take("=")
            field.default_value = self._take()
            self._take("]")
        self._take(";")

    def _typed(self, field, kind):
        plain = f"TYPE_{kind.upper()}"
        if plain in FieldDescriptorProto.Type.DESCRIPTOR.values_by_name:
            field.type = FieldDescriptorProto.Type.Value(plain)
        else:
            field.type = FieldDescriptorProto.TYPE_ENUM if kind in self._enums else FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{kind}" if kind.startswith("google.") else kind

    def _extend(self):
        extended = self._take()
        self._take("{")
        while (label := self._take()) != "}":
            field = self._file.extension.add(extendee=extended)
            self._field(field, _LABELS[label], self._take())
