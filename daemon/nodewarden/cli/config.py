"""`nodectl config check` and `config show`: offline; nothing is opened but the file and its secrets."""

import inspect
from pathlib import Path
from typing import Any

import click

from nodewarden import paths
from nodewarden.cli.exits import CONFIG, OK
from nodewarden.cli.output import emit, emit_json, say
from nodewarden.cli.params import json_option
from nodewarden.config import Config, Secret, load_config
from nodewarden.errors import ConfigError

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
_HOST = click.option("--host", metavar="NAME", help='Whose [host."NAME"] overlay applies; default: this machine.')
_INTRODUCTION = """One TOML file, `/etc/nodewarden/nodewarden.toml`; an empty one is valid. `nodectl config check` names
every mistake at once, `nodectl config show` prints what is in force on a host.

`[host."NAME".limits]`, `[[host."NAME".pdu]]` and so on say the same for one host, by its full or short name: tables are
merged key by key, lists (all PDUs, all outlets) are replaced. So one file can serve many nodes.

Secrets are read from files (`community_file`, `secret_file`); in their paths `${CREDENTIALS_DIRECTORY}` stands for the
directory of systemd's `LoadCredential=`, and a relative path starts at the configuration file. The installed service
finds `/etc/nodewarden/pdu/NAME` (folder 0700 root) there as `pdu_NAME`."""


@click.group()
def config() -> None:
    """Check or show the configuration, without an agent."""


@config.command()
@_FILE
@_HOST
@json_option
def check(file: Path | None, host: str | None, as_json: bool) -> int:
    """Name every mistake in FILE at once (default: the installed one). Exit code 78 when there is one.

    \b
    Examples:
      nodectl config check
      nodectl config check ./nodewarden.toml --host gpu-node-07
    """
    path = file or paths.config_path()
    problems: list[str] = []
    warnings: tuple[str, ...] = ()
    try:
        warnings = load_config(path, hostname=host, offline=True).warnings
    except ConfigError as error:
        problems = error.problems
    if as_json:
        emit_json({"file": str(path), "ok": not problems, "problems": problems, "warnings": list(warnings)})
    else:
        for line in [*problems, *(f"{warning} (warning)" for warning in warnings)]:
            say(line)
        if not problems:
            emit(f"{path}: no mistakes")
    return CONFIG if problems else OK


@config.command()
@_FILE
@_HOST
@json_option
def show(file: Path | None, host: str | None, as_json: bool) -> None:
    """Print the configuration that would be used: defaults and this host's overlay included, secrets hidden.

    \b
    Examples:
      nodectl config show
      nodectl config show --json | jq .sampling
    """
    document = config_document(load_config(file or paths.config_path(), hostname=host, offline=True))
    if as_json:
        emit_json(document)
    else:
        emit("\n".join(_toml_lines(document)))


@config.command()
@json_option
def keys(as_json: bool) -> None:
    """Print every key that the file may have, what it accepts and its default (docs/configuration.md is this).

    \b
    Examples:
      nodectl config keys
    """
    sections = config_keys()
    if as_json:
        emit_json(sections)
        return
    lines = ["# Configuration", "", _INTRODUCTION]
    for section in sections:
        lines += [
            "",
            f"## `{section['table']}`",
            "",
            section["about"],
            "",
            "| key | allowed | default |",
            "|---|---|---|",
        ]
        lines += [f"| `{key['key']}` | {key['allowed']} | {key['default']} |" for key in section["keys"]]
    emit("\n".join(lines))


def config_keys() -> list[dict[str, Any]]:
    """Every table of the file with its keys."""
    import msgspec  # noqa: PLC0415 -- with config.py it is loaded already

    from nodewarden.config_check import allowed_for, is_filled_later, struct_of  # noqa: PLC0415

    sections = []
    for table in msgspec.structs.fields(Config):
        struct = struct_of(table.type)
        if struct is None or is_filled_later(table.type):
            continue
        fields = [field for field in msgspec.structs.fields(struct) if not is_filled_later(field.type)]
        sections.append(
            {
                "table": f"[[{table.name}]]" if table.name == "pdu" else f"[{table.name}]",
                "about": inspect.cleandoc(struct.__doc__ or ""),
                "keys": [
                    {"key": field.name, "allowed": allowed_for(field.type), "default": _default(table.name, field)}
                    for field in fields
                ],
            }
        )
    return sections


def _default(table: str, field: Any) -> str:
    if field.required:
        return "the host's name" if table == "node" else "needed"
    if field.default is None or field.default == ():
        return "none"
    return _toml(field.default)


def config_document(loaded: Config) -> dict[str, Any]:
    """The configuration as plain data, without file name and warnings, with *** for every secret."""
    import msgspec  # noqa: PLC0415 -- with config.py it is loaded already

    document: dict[str, Any] = msgspec.to_builtins(loaded, enc_hook=_hide)
    for key in ("path", "warnings"):
        document.pop(key)
    return document


def _hide(thing: Any) -> str:
    if isinstance(thing, Secret):
        return repr(thing)
    return str(thing)


def _toml_lines(document: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, table in document.items():
        for part in table if isinstance(table, list | tuple) else [table]:
            if part is None:
                continue
            lines += ["", f"[[{name}]]" if isinstance(table, list | tuple) else f"[{name}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in part.items() if value is not None]
    return lines[1:]


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case dict():
            return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
        case _:
            return str(value)
