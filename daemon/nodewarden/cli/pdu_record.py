"""`nodectl pdu record`: a PDU as a file for a bug report, without what says whose it is."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nodewarden.cli.exits import DEGRADED, NOT_ANSWERING, CliError
from nodewarden.cli.output import emit, emit_json
from nodewarden.cli.params import json_option
from nodewarden.cli.pdu_access import Address, access_from, access_options

if TYPE_CHECKING:
    from nodewarden.devices.snmp_access import Credentials


@click.command()
@click.argument("address", metavar="HOST[:PORT]", type=Address())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@access_options
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@json_option
def record(address: tuple[str, int], file: Path, force: bool, as_json: bool, timeout_s: float, **access: Any) -> None:
    """Record what a PDU says, for a bug report. Only reads, and takes some minutes on a slow device.

    Numbers and types stay as they are. Serial numbers, names, contacts, locations, addresses and every text that is no
    measurement become x of the same length; look at FILE before you send it all the same.

    \b
    Examples:
      nodectl pdu record 192.0.2.10 pdu.snmprec --community-file /etc/nodewarden/pdu/community
      snmpsim-command-responder --data-dir . --agent-udpv4-endpoint 127.0.0.1:1161   # replays it
    """
    from nodewarden.errors import DeviceError  # noqa: PLC0415 -- pysnmp takes half a second to load

    credentials = access_from(access)
    if file.exists() and not force:
        raise click.UsageError(f"{file} is there already; --force replaces it")
    if not file.parent.is_dir():
        raise click.UsageError(f"{file.parent} is no directory")
    try:
        lines = asyncio.run(_ask(address, credentials, timeout_s))
    except DeviceError as error:
        code = NOT_ANSWERING if error.reason in {"timeout", "unreachable"} else DEGRADED
        raise CliError(str(error), code) from None
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise CliError(f"{file} cannot be written: {error.strerror}", DEGRADED) from None
    if as_json:
        emit_json({"file": str(file), "objects": len(lines)})
    else:
        emit(f"{len(lines)} objects written to {file}. Look through it before you send it.")


async def _ask(address: tuple[str, int], credentials: "Credentials", timeout_s: float) -> list[str]:
    from nodewarden.devices.snmp import SnmpEngine  # noqa: PLC0415
    from nodewarden.errors import NotSupportedError  # noqa: PLC0415
    from nodewarden.sources.pdu import recording  # noqa: PLC0415
    from nodewarden.sources.pdu.decode import decode  # noqa: PLC0415
    from nodewarden.sources.pdu.engine import identify, read_all  # noqa: PLC0415

    engine = SnmpEngine()
    try:
        device = engine.device(*address, credentials, timeout_s=timeout_s)
        keep: list[str] = []
        try:
            profile = (await identify(device)).profile
            model = decode(profile, await read_all(device, profile, deadline_s=max(30.0, 30 * timeout_s))).scalars.get(
                "model"
            )
            keep = [str(model)] if model else []
        except NotSupportedError:
            pass  # a device that we do not know is what recordings are wanted of
        return recording.lines_of(await recording.record(device, deadline_s=max(300.0, 300 * timeout_s)), keep)
    finally:
        await engine.close()
