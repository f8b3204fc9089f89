"""`nodectl pdu learn`: which outlets feed this node, from how their power follows the GPUs'. A person confirms."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from nodewarden import paths
from nodewarden.cli.connection import ask
from nodewarden.cli.exits import DEGRADED, NOT_ANSWERING, OK, CliError
from nodewarden.cli.output import emit, emit_json, say, screen
from nodewarden.cli.params import Duration, json_option, runtime_of
from nodewarden.cli.pdu_access import Address, access_from, access_options
from nodewarden.cli.table import Cell, Column, table_lines
from nodewarden.clock import boot_now_s
from nodewarden.config import PduConfig, load_config
from nodewarden.errors import DeviceError

if TYPE_CHECKING:
    from nodewarden.devices.snmp_access import Credentials
    from nodewarden.sources.pdu.learning import Learnt, Match, Outlet

_GPU_EVERY_S, _PDU_EVERY_S, _SAY_EVERY_S = 1.0, 5.0, 10.0
_ENOUGH = 0.9  # confidence of all proposed outlets, after which nothing more need be gathered
_USED = ("community", "community_file", "user")


@click.command()
@click.argument("addresses", metavar="[HOST[:PORT]]...", type=Address(), nargs=-1)
@access_options
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="F", help="Its PDUs.")
@click.option(
    "--for", "for_s", type=Duration(5, 24 * 3600), default="10m", show_default=True, help="How long to watch at most."
)
@click.option("--every", "every_s", type=click.FloatRange(0.05, 60), default=_PDU_EVERY_S, hidden=True)
@json_option
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    addresses: tuple[tuple[str, int], ...],
    config_file: Path | None,
    for_s: float,
    every_s: float,
    as_json: bool,
    timeout_s: float,
    **access: Any,
) -> None:
    """Find out which outlets feed this node, by watching their power and the GPUs' for some minutes.

    The agent must run: it says what the GPUs draw. Load that starts and stops on this node alone makes it quick and
    sure. Nothing is switched and no file is changed: the lines for the configuration are printed for you to check.
    Ends with 0 when outlets are proposed, with 1 when nothing sure can be said.

    \b
    Examples:
      nodectl pdu learn                              # the PDUs of the configuration
      nodectl pdu learn --for 30m
      nodectl pdu learn 192.0.2.10 192.0.2.11 --community-file /etc/nodewarden/pdu/community --json
    """
    runtime = runtime_of(ctx)
    pdus = _pdus(addresses, access, config_file, timeout_s)
    _gpus_w(runtime)  # says at once when no agent is there
    watch = _Watch(runtime, pdus, every_s=every_s, quiet=as_json)
    with contextlib.suppress(KeyboardInterrupt):  # what was gathered until then still says something
        asyncio.run(watch.run(for_s))
    if watch.silent and not any(watch.outlets.values()):
        raise CliError("; ".join(watch.silent.values()), NOT_ANSWERING)
    learnt = watch.learnt()
    if as_json:
        emit_json(msgspec.to_builtins(learnt) | {"silent": watch.silent})
    else:
        emit("\n".join(_lines(learnt, watch)))
    ctx.exit(OK if learnt.verdict == "found" else DEGRADED)


class _Pdu(msgspec.Struct):
    """One PDU to watch."""

    config: PduConfig
    credentials: "Credentials"


def _pdus(
    addresses: tuple[tuple[str, int], ...], access: dict[str, Any], config_file: Path | None, timeout_s: float
) -> list[_Pdu]:
    from nodewarden.errors import NotSupportedError  # noqa: PLC0415
    from nodewarden.sources.pdu.access import credentials_of  # noqa: PLC0415 -- only where a device is asked

    if addresses:
        if config_file is not None:
            raise click.UsageError("give either addresses or --config")
        credentials = access_from(access)
        return [
            _Pdu(PduConfig(name=f"{host}:{port}", host=host, port=port, timeout_s=min(10.0, timeout_s)), credentials)
            for host, port in addresses
        ]
    if any(access[name] is not None for name in _USED):
        raise click.UsageError("credentials need an address; without both, the PDUs of the configuration are asked")
    config = load_config(config_file or paths.config_path(), offline=True)
    if not config.pdu:
        raise click.UsageError(f"{config.path} has no [[pdu]]; give addresses, or add them")
    try:
        return [_Pdu(pdu, credentials_of(pdu)) for pdu in config.pdu]
    except NotSupportedError as error:
        raise click.UsageError(f"{error} (a secret that only the service may read: give addresses and files)") from None


def _gpus_w(runtime: Path) -> float | None:
    """Power of all GPUs together now, None while one of them does not say."""
    gpus = ask(runtime, "status")["gpus"]
    powers = [gpu["power_w"] for gpu in gpus]
    if not powers:
        raise CliError("the agent sees no GPU on this node; outlets are learnt by the GPUs' power", DEGRADED)
    return None if any(power is None for power in powers) else sum(powers)


class _Watch:
    """Gathers both sides."""

    def __init__(self, runtime: Path, pdus: list[_Pdu], *, every_s: float, quiet: bool) -> None:
        self.pdus = pdus
        self.gpus: list[tuple[float, float]] = []
        self.outlets: dict[Outlet, list[tuple[float, float]]] = {}
        self.names: dict[Outlet, str] = {}
        self.silent: dict[str, str] = {}
        self._runtime = runtime
        self._every_s = every_s
        self._quiet = quiet

    def learnt(self) -> "Learnt":
        """What can be said so far."""
        from nodewarden.sources.pdu.learning import learn as estimate  # noqa: PLC0415

        return estimate(self.gpus, self.outlets, window_s=self._every_s)

    async def run(self, for_s: float) -> None:
        """Until the time is over, or all is clear."""
        from nodewarden.devices.snmp import SnmpEngine  # noqa: PLC0415 -- pysnmp takes half a second to load

        engine = SnmpEngine()
        await engine.warm_up()
        tasks = [asyncio.create_task(self._watch_gpus())]
        tasks += [asyncio.create_task(self._watch_pdu(engine, pdu)) for pdu in self.pdus]
        began_s = boot_now_s()
        try:
            while (left_s := began_s + for_s - boot_now_s()) > 0:
                await asyncio.wait(tasks, timeout=min(_SAY_EVERY_S, left_s), return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()  # a loop ends by its error only
                learnt = self.learnt()
                self._say(learnt, boot_now_s() - began_s, for_s)
                if learnt.verdict == "found" and min(match.confidence for match in learnt.matches) >= _ENOUGH:
                    return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await engine.close()

    def _say(self, learnt: "Learnt", after_s: float, for_s: float) -> None:
        if self._quiet or not sys.stderr.isatty():
            return
        best = f", best so far: {_names(learnt.matches)}" if learnt.matches else ""
        say(f"{after_s:.0f} s of {for_s:.0f} s: {len(self.outlets)} outlets, {learnt.text}{best}")

    async def _watch_gpus(self) -> None:
        while True:
            power_w = await asyncio.to_thread(_gpus_w, self._runtime)
            if power_w is not None:
                self.gpus.append((boot_now_s(), power_w))
            await asyncio.sleep(min(_GPU_EVERY_S, self._every_s))

    async def _watch_pdu(self, engine: Any, pdu: _Pdu) -> None:
        from nodewarden.sources.pdu.watching import OutletPowers  # noqa: PLC0415

        config, name = pdu.config, pdu.config.name
        powers = OutletPowers(engine.device(config.host, config.port, pdu.credentials, timeout_s=config.timeout_s))
        while True:
            at_s = boot_now_s()
            try:
                found = await powers.read()
            except DeviceError as error:
                self.silent[name] = str(error)
            else:
                self.silent.pop(name, None)
                for outlet, (power_w, label) in found.items():
                    self.outlets.setdefault((name, outlet), []).append((at_s, power_w))
                    self.names[name, outlet] = label
                if not found:
                    self.silent[name] = f"{name} does not meter single outlets"
            await asyncio.sleep(max(0.0, at_s + self._every_s - boot_now_s()))


def _names(matches: "tuple[Match, ...]") -> str:
    return ", ".join(f"{match.pdu} {match.outlet}" for match in matches)


def _lines(learnt: "Learnt", watch: _Watch) -> list[str]:
    where = screen()
    lines = [learnt.text]
    lines += [f"not read: {said}" for said in watch.silent.values()]
    columns = [
        Column("PDU"),
        Column("OUTLET", right=True),
        Column("NAME", rank=2, shrink=True),
        Column("CONFIDENCE", right=True),
        Column("SHARE", right=True, rank=1),
        Column("LATER BY", right=True, rank=3),
    ]
    for title, matches in (("", learnt.matches), ("these fit nearly as well:", learnt.others[:8])):
        if not matches:
            continue
        rows = [
            [
                Cell(match.pdu),
                Cell(str(match.outlet)),
                Cell(watch.names.get((match.pdu, match.outlet), "")),
                Cell(f"{100 * match.confidence:.0f} %" if title == "" else "-"),
                Cell(f"{100 * match.gain:.0f} %"),
                Cell(f"{match.lag_s:.0f} s"),
            ]
            for match in matches
        ]
        lines += ["", *([title] if title else []), *table_lines(where, columns, rows)]
    if learnt.verdict == "found":
        lines += ["", "check it against the cabling; then, for the configuration:"]
        for pdu in watch.pdus:
            mine = [match.outlet for match in learnt.matches if match.pdu == pdu.config.name]
            if mine:
                lines += ["[[pdu]]", f'name = "{pdu.config.name}"', f'host = "{pdu.config.host}"']
                lines += [f"port = {pdu.config.port}"] if pdu.config.port != 161 else []
                lines += [f"outlets = {mine}"]
    return lines
