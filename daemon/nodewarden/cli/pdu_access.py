"""How the `nodectl pdu` commands are told what a device asks for: community or v3 user, secrets by file."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from nodewarden.devices.snmp_access import Credentials

Command = TypeVar("Command", bound=Callable[..., Any])

_AUTH = ("md5", "sha", "sha224", "sha256", "sha384", "sha512")
_PRIV = ("des", "aes", "aes192", "aes256", "aes192c", "aes256c")
_FILE = click.Path(path_type=Path)


class Address(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """`HOST`, `HOST:PORT`, `[IPV6]:PORT`."""

    name = "HOST[:PORT]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Host and port; 161 when none is given."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        host, port = text, "161"
        if text.startswith("["):
            host, _, rest = text[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif text.count(":") == 1:
            host, port = text.split(":")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65535:
            self.fail(f"{text!r} is no address; allowed: HOST, HOST:PORT or [IPV6]:PORT", param, ctx)
        return host, int(port)


def access_options(command: Command) -> Command:
    """The options that `access_from` takes."""
    for option in reversed((
        click.option("--community", metavar="C", help="Community in the clear; it shows in the process list."),
        click.option("--community-file", type=_FILE, metavar="F", help="File with the community."),
        click.option(
            "--version", type=click.Choice(["1", "2c", "3"]), help="Of SNMP.  [default: 2c, or 3 with --user]"
        ),
        click.option("--user", metavar="U", help="SNMPv3 user."),
        click.option("--auth-protocol", type=click.Choice(_AUTH), help="[default: sha, with --auth-file]"),
        click.option("--auth-file", type=_FILE, metavar="F", help="File with the authentication password."),
        click.option("--priv-protocol", type=click.Choice(_PRIV), help="[default: aes, with --priv-file]"),
        click.option("--priv-file", type=_FILE, metavar="F", help="File with the privacy password."),
        click.option("--context", metavar="X", help="SNMPv3 context."),
        click.option(
            "--timeout", "timeout_s", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, metavar="S"
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def access_from(options: dict[str, Any]) -> "Credentials":
    """Community or user from the options; raises a usage error that says which belong together."""
    from nodewarden.devices.snmp_access import Community, User  # noqa: PLC0415 -- only where a device is asked

    version = options["version"] or ("3" if options["user"] else "2c")
    v3_only = [f"--{name.replace('_', '-')}" for name in _V3_OPTIONS if options[name] is not None]
    of_v2 = [f"--{name.replace('_', '-')}" for name in ("community", "community_file") if options[name] is not None]
    if version != "3":
        if v3_only:
            raise click.UsageError(f"{', '.join(v3_only)} belongs to SNMPv3; --version is {version}")
        if len(of_v2) != 1:
            raise click.UsageError("give either --community or --community-file (SNMPv3: --user and its files)")
        community = options["community"]
        if community is None:
            community = secret_in(options["community_file"])
        elif not community:
            raise click.UsageError("--community is empty; give the one that the device allows to read")
        return Community(community, "1" if version == "1" else "2c")
    if of_v2:
        raise click.UsageError(f"{', '.join(of_v2)} belongs to SNMP 1 and 2c; SNMPv3 has --user and its files")
    if not options["user"]:
        raise click.UsageError("SNMPv3 needs --user")
    for kind in ("auth", "priv"):
        if options[f"{kind}_protocol"] is not None and options[f"{kind}_file"] is None:
            raise click.UsageError(f"--{kind}-protocol needs --{kind}-file")
    auth: tuple[Any, str] | None = None
    priv: tuple[Any, str] | None = None
    if options["auth_file"] is not None:
        auth = options["auth_protocol"] or "sha", secret_in(options["auth_file"])
    if options["priv_file"] is not None:
        priv = options["priv_protocol"] or "aes", secret_in(options["priv_file"])
    try:
        return User(options["user"], auth=auth, priv=priv, context=options["context"] or "")
    except ValueError as error:
        raise click.UsageError(str(error)) from None


_V3_OPTIONS = ("user", "auth_protocol", "auth_file", "priv_protocol", "priv_file", "context")


def secret_in(file: Path) -> str:
    """The one line of a file; raises a usage error that names the file and not its content."""
    try:
        text = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise click.UsageError(f"{file} cannot be read: {said}") from None
    if not text:
        raise click.UsageError(f"{file} is empty")
    return text


def stanza(options: dict[str, Any], address: tuple[str, int]) -> list[str]:
    """The lines of `[[pdu]]` that reach the same device the same way; secrets are named by their file only."""
    host, port = address
    lines = [f'host = "{host}"', *([f"port = {port}"] if port != 161 else [])]
    version = options["version"] or ("3" if options["user"] else "2c")
    if version != "3":
        file = options["community_file"] or "..."
        return [*lines, *([f'version = "{version}"'] if version != "2c" else []), f'community_file = "{file}"']
    lines += ['version = "3"', f'user = "{options["user"]}"']
    for kind, usual in (("auth", "sha"), ("priv", "aes")):
        if options[f"{kind}_file"] is not None:
            protocol = options[f"{kind}_protocol"] or usual
            lines.append(f'{kind} = {{ protocol = "{protocol}", secret_file = "{options[f"{kind}_file"]}" }}')
    return [*lines, *([f'context = "{options["context"]}"'] if options["context"] else [])]
