"""The binary format that a `decode` step names, with its schema. Pure but for the files that it reads."""

from collections.abc import Mapping

from correlator.errors import ConfigError
from correlator.pipeline.avro import AvroFormat
from correlator.pipeline.binary import Format, content_of
from correlator.pipeline.protobuf import ProtobufFormat
from correlator.pipeline.spec import DecodeStep

BINARY = ("avro", "protobuf")
"""The formats that Python decodes; Spark decodes the others."""


def columns_of_bodies(step: DecodeStep) -> tuple[Format, Mapping[str, str]]:
    """The format of a step that has one of `BINARY`, and its columns with their types in Spark's DDL.

    Raises:
        ConfigError: E1513, no column can hold a field; E1517, two fields have one name; E1529, the schema, the
            descriptor or its file cannot be used; E1537, a package is missing. The place of the error is a setting of
            the step.
    """
    format_ = format_of(step)
    try:
        columns = format_.columns()
        format_.decoder()  # so that a mistake appears now, and not with the first body
    except ConfigError:
        raise
    except Exception as error:  # a schema is any JSON, and a descriptor any bytes
        setting = "descriptor" if step.format == "protobuf" else "schema"
        what = f"cannot be used: {type(error).__name__}: {error}".partition("\n")[0]
        raise ConfigError("E1529", setting, what) from error
    return format_, columns


def format_of(step: DecodeStep) -> Format:
    """The format of a step, with its schema; raises `ConfigError` E1529 for a file that cannot be read."""
    if step.format == "protobuf":
        return ProtobufFormat(content_of("descriptor", step.descriptor or ""), step.message or "")
    if step.schema_file is None:
        return AvroFormat(step.schema or "", step.writer_schema)
    try:
        schema = content_of("schema_file", step.schema_file).decode()
    except UnicodeDecodeError as error:
        raise ConfigError("E1529", "schema_file", f"{step.schema_file} is not UTF-8") from error
    return AvroFormat(schema, step.writer_schema, "schema_file")
