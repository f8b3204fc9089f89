"""One PDU as a source: what is due is read, decoded by its profile, and given out as a `PduSnapshot`.

Totals and phases come in one GET every period, this node's outlets and the rest in slower turns. The first read finds
out what the device is; so does the first one after it was away for long, has restarted, or answers nothing it used to.
"""

from collections import Counter
from typing import Any

import structlog

from nodewarden.clock import Clock
from nodewarden.config import PduConfig, SamplingConfig
from nodewarden.devices.snmp import MAX_OIDS, SnmpDevice, SnmpEngine
from nodewarden.devices.snmp_access import CREDENTIALS_REASONS
from nodewarden.errors import DeviceError
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import BankSnapshot, Number, OutletSnapshot, PduSnapshot, PhaseSnapshot
from nodewarden.sources.pdu.access import credentials_of
from nodewarden.sources.pdu.backoff import Backoff
from nodewarden.sources.pdu.crosscheck import suspects
from nodewarden.sources.pdu.decode import Columns, Decoded, Used, decode, store
from nodewarden.sources.pdu.energy import EnergyCounter
from nodewarden.sources.pdu.engine import Identity, identify, read_all
from nodewarden.sources.pdu.profile import SYS_UP_TIME, Profile

log = structlog.get_logger("nodewarden.pdu")

_UP_TIME_OID = f"{SYS_UP_TIME}.0"
_AWAY_S = 60.0  # away for longer: what comes back may be another device
_SURE = 4  # contradictions in a row before a quantity is suspect, and agreements before it is not


class _Part:
    """Objects that are read together, and when."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.oids: list[str] = []
        self.next_s = 0.0
        self.taken_s = 0.0
        self.failed_s: float | None = None
        self.reason = ""

    def stale_after_s(self) -> float:
        """Age from which its values are not shown any longer."""
        return max(3 * self.period_s, 15.0)


class PduSource:
    """Reads one PDU. `read` is one pass; passes do not overlap.

    Args:
        config: address, credentials, this node's outlets.
        engine: SNMP of this process.
        clock: for ages; the deadlines of the network run on real time.
        sampling: the periods.

    Attributes:
        name: of the configuration.
        warnings: what a person should know of this PDU, in full sentences.
        rejected: how many values were outside what the physics allows, by quantity.
    """

    def __init__(
        self, config: PduConfig, engine: SnmpEngine, clock: Clock, sampling: SamplingConfig | None = None
    ) -> None:
        periods = sampling or SamplingConfig()
        self.name = config.name
        self.warnings: tuple[str, ...] = ()
        self.rejected: Counter[str] = Counter()
        self._config = config
        self._clock = clock
        self._engine = engine
        self._device: SnmpDevice | None = None
        self._identity: Identity | None = None
        self._columns: Columns = {}
        self._found = Decoded(scalars={}, rows={})
        period_s = config.period_s or periods.pdu_totals_s
        self._fast, self._own = _Part(period_s), _Part(max(periods.pdu_outlets_s, period_s))
        self._others = _Part(periods.pdu_other_outlets_s and max(periods.pdu_other_outlets_s, period_s))
        self._backoff = Backoff(period_s, config.name)
        self._read_all_s = 0.0
        self._up_time: int | None = None
        self._energy = EnergyCounter()
        self._restarted = False
        self._has_metered_outlets = False
        self._planned: set[str] = set()
        self._doubts: Counter[str] = Counter()
        self._suspect: set[str] = set()
        self._last_answer_s: float | None = None
        self._last_error: DeviceError | None = None
        self._up_since_s: float | None = None
        self._missing_since_s: dict[str, float] = {}
        self._seen: set[str] = set()

    async def read(self) -> PduSnapshot:
        """One pass over what is due.

        It ends within its own deadlines: `timeout_s` of the configuration for each answer, at most 30 times that (and
        at least 30 s) for the first reading of a device with many outlets.

        Raises:
            DeviceError: with reason "timeout", "unreachable", "bad_answer", "not_supported" or one of
                `CREDENTIALS_REASONS`; again and without asking, while the device is left alone after failures.
        """
        now_s = self._clock.now_s()
        if not self._backoff.is_due(now_s) and self._last_error is not None:
            raise DeviceError(str(self._last_error), self._last_error.reason)
        try:
            device = self._opened()
            if self._identity is None or self._must_detect(now_s):
                await self._detect(device, now_s)
            else:
                await self._poll(device, now_s)
        except DeviceError as error:
            self._backoff.failed(now_s, refused=error.reason in CREDENTIALS_REASONS)
            self._last_error = error
            self._up_since_s = None
            if self._device is not None:
                self._device.forget_address()
            raise
        self._backoff.succeeded()
        self._last_error = None
        self._last_answer_s = now_s
        self._up_since_s = now_s if self._up_since_s is None else self._up_since_s
        return self._snapshot(self._up_since_s)

    # reading

    def _opened(self) -> SnmpDevice:
        if self._device is None:
            config = self._config
            credentials = credentials_of(config)
            self._device = self._engine.device(config.host, config.port, credentials, timeout_s=config.timeout_s)
        return self._device

    def _must_detect(self, now_s: float) -> bool:
        return self._last_answer_s is None or now_s - self._last_answer_s > max(_AWAY_S, 4 * self._fast.period_s)

    async def _detect(self, device: SnmpDevice, now_s: float) -> None:
        """Find out what the device is and read all of it."""
        try:
            identity = await identify(device)
            columns = await read_all(device, identity.profile, deadline_s=max(30.0, 30 * device.timeout_s))
        except DeviceError:
            self._identity = None
            raise
        before, self._identity = self._identity, identity
        if before is None or before.profile is not identity.profile:
            self._energy = EnergyCounter(_wh_per_count(identity.profile))
        self._columns, self._up_time = columns, identity.up_time
        if before is not None and before.profile is not identity.profile:
            self._seen.clear()  # another device at this address
        found = self._found = decode(identity.profile, columns)
        self._plan(found)
        self._read_all_s = now_s
        for part in (self._fast, self._own, self._others):
            part.taken_s, part.next_s, part.failed_s = now_s, now_s + part.period_s, None
        self._doubts.clear()
        self._suspect.clear()
        self._check(found, _SURE)
        self._warn(found)

    def _plan(self, found: Decoded) -> None:
        """Which objects are read how often.

        Those without a value are asked for in the slow turn, except those of other nodes' outlets: a device that has
        just started shows markers first. They take their place once they have a value.
        """
        mine = set(self._config.outlets)
        fast: list[Used] = []
        own: list[str] = []
        others: list[str] = []
        for used in found.used:
            if used.field.poll == "once":
                continue
            if used.outlet is not None:
                (own if used.outlet in mine else others).extend(used.oids())
            elif used.field.poll == "fast":
                fast.append(used)
            else:
                own += used.oids()
        for silent in found.silent:
            if silent.field.poll != "once" and (silent.outlet is None or silent.outlet in mine):
                own += silent.oids()
        first = [_UP_TIME_OID]
        for used in sorted(fast, key=lambda entry: entry.field.rank):
            (first if len(first) + len(used.oids()) <= MAX_OIDS else own).extend(used.oids())
        self._fast.oids = first
        self._own.oids = list(dict.fromkeys(own))
        self._others.oids = others if self._others.period_s > 0 else []
        self._planned = {used.oid for used in found.used}
        self._has_metered_outlets = _any_power(found)

    def _plan_more(self, found: Decoded) -> bool:
        """Add objects that give a value for the first time; drops none. True when there were any."""
        new = [used for used in found.used if used.oid not in self._planned]
        for used in new:
            self._planned.add(used.oid)
            part = self._own
            if used.field.poll == "once":
                continue
            if used.outlet is not None and used.outlet not in self._config.outlets:
                part = self._others
            elif used.outlet is None and used.field.poll == "fast":
                part = self._fast if len(self._fast.oids) + len(used.oids()) <= MAX_OIDS else self._own
            part.oids = list(dict.fromkeys([*part.oids, *used.oids()]))
        self._has_metered_outlets = self._has_metered_outlets or _any_power(found)
        return bool(new)

    async def _poll(self, device: SnmpDevice, now_s: float) -> None:
        """The fast part always; the others when they are due. Only the fast part decides whether the PDU is there."""
        values = await device.get(self._fast.oids)
        up_time = values[_UP_TIME_OID]
        restarted = isinstance(up_time, int) and self._up_time is not None and up_time < self._up_time
        vanished = len(values) > 1 and all(value is None for oid, value in values.items() if oid != _UP_TIME_OID)
        self._restarted = restarted
        if restarted or vanished:
            # after 497 days the counter wraps, which looks the same: reading everything again does no harm
            await self._detect(device, now_s)
            return
        self._up_time = up_time if isinstance(up_time, int) else None
        store(self._columns, values, self._columns)
        self._fast.taken_s = now_s
        for part in (self._own, self._others):
            if part.oids and now_s >= part.next_s:
                part.next_s = now_s + part.period_s - 0.5 * self._fast.period_s
                await self._poll_part(device, part, now_s)
        assert self._identity is not None
        found = self._found = decode(self._identity.profile, self._columns)
        if self._plan_more(found):
            self._warn(found)
        self._check(found, 1)

    async def _poll_part(self, device: SnmpDevice, part: _Part, now_s: float) -> None:
        try:
            for start in range(0, len(part.oids), MAX_OIDS):
                values = await device.get(part.oids[start : start + MAX_OIDS])
                store(self._columns, values, self._columns)
        except DeviceError as error:
            part.next_s = now_s  # again in the next pass
            part.failed_s = part.failed_s or now_s
            part.reason = error.reason
            if now_s - part.taken_s > part.stale_after_s():
                store(self._columns, dict.fromkeys(part.oids), self._columns)
            return
        part.taken_s, part.failed_s = now_s, None

    # judging

    def _check(self, found: Decoded, weight: int) -> None:
        """Quantities are suspect once they have been contradicted several times: parts are read at different times."""
        self.rejected.update(found.rejected)
        # outlets of others may be a minute older than the total: compared only when everything was read together
        together = weight == _SURE
        now = set(suspects(found.scalars, found.of("phases"), found.of("outlets"), outlets_with_total=together))
        for path in now | set(self._doubts):
            count = self._doubts[path] + (weight if path in now else -weight)
            self._doubts[path] = max(0, min(_SURE, count))
            if self._doubts[path] == _SURE:
                self._suspect.add(path)
            elif self._doubts[path] == 0:
                self._suspect.discard(path)
                del self._doubts[path]

    def _warn(self, found: Decoded) -> None:
        model = found.scalars.get("model") or "this PDU"
        warnings = []
        outlets = {row["index"] for row in found.of("outlets")}
        missing = sorted(set(self._config.outlets) - outlets)
        watched = "limit_w cannot be watched" if self._config.limit_w is not None else "they are shown without watts"
        if self._config.outlets and not self._has_metered_outlets:
            warnings.append(
                f"{model} does not meter single outlets, so the power of outlets"
                f" {_list(self._config.outlets)} is not known: {watched}."
                " Use a PDU that meters outlets, or limit the GPUs with limits.node_power_w."
            )
        elif missing:
            warnings.append(
                f"{model} has no outlet {_list(missing)} ({len(outlets)} outlets): {watched}."
                " Correct `outlets` of this PDU in the configuration."
            )
        warnings += [
            f"{total} of {model} is computed by the device from a configured voltage, not measured."
            for total in found.estimated
        ]
        if tuple(warnings) != self.warnings:
            self.warnings = tuple(warnings)
            for warning in warnings:
                log.warning("pdu_warning", pdu=self.name, text=warning)

    # what others see

    def _snapshot(self, since_s: float) -> PduSnapshot:
        assert self._identity is not None
        found = self._found
        outlets_w = self._outlets_w(found)
        suspect = sorted(self._suspect)
        mine = set(self._config.outlets)
        positions = [n for n, row in enumerate(found.of("outlets")) if row["index"] in mine]
        if any(f"outlets[{position}].power_w" in self._suspect for position in positions):
            suspect.append("outlets_w")
        return PduSnapshot(
            name=self.name,
            feed=self._config.feed,
            vendor=found.scalars.get("vendor") or self._identity.profile.vendor,
            model=found.scalars.get("model") or "",
            profile=self._identity.profile.name,
            up=True,
            since_s=since_s,
            limit_w=self._config.limit_w,
            rated_w=self._config.rated_w,
            rated_a=self._config.rated_a,
            mapped_outlets=self._config.outlets,
            power_w=self._total("total_power_w"),
            apparent_va=self._total("apparent_power_va"),
            power_factor=self._total("power_factor"),
            energy_wh=self._energy_total(),
            outlets_w=outlets_w,
            phases=tuple(_fill(PhaseSnapshot, row) for row in found.of("phases")),
            banks=tuple(_fill(BankSnapshot, row) for row in found.of("banks")),
            outlets=tuple(
                _fill(OutletSnapshot, {**row, "name": (row.get("name") or "").strip()}) for row in found.of("outlets")
            ),
            suspect=tuple(suspect),
            estimated=tuple(found.estimated),
        )

    def _energy_total(self) -> Number:
        """The device's energy, over restarts and wraps of its counter."""
        told = self._total("energy_wh")
        if not isinstance(told, Reading):
            return told
        restarted, self._restarted = self._restarted, False
        total_wh = self._energy.take(told.value, told.taken_at_s, restarted=restarted)
        return told if total_wh is None else Reading(total_wh, told.taken_at_s)

    def _total(self, quantity: str) -> Number:
        """A total. One that this device has given before and does not give now has failed; others are absent."""
        value = self._found.scalars.get(quantity)
        if value is not None:
            self._seen.add(quantity)
            self._missing_since_s.pop(quantity, None)
            return Reading(float(value), self._fast.taken_s)
        if quantity in self._seen:
            return Failed("no_reading", self._missing_since_s.setdefault(quantity, self._fast.taken_s))
        return Absent("not_supported")

    def _outlets_w(self, found: Decoded) -> Number:
        """All of this node's outlets together or nothing: the sum of some of them would look safe and is not."""
        if not self._config.outlets:
            return Absent("no_outlets_mapped")
        if not self._has_metered_outlets:
            return Absent("not_metered")
        rows: dict[int, dict[str, Any]] = {}
        for row in found.of("outlets"):
            rows.setdefault(row["index"], row)  # of a second unit on the same address, which counts from 1 as well
        powers = [rows[number].get("power_w") if number in rows else None for number in self._config.outlets]
        known = [power for power in powers if power is not None]
        if len(known) == len(powers):
            self._missing_since_s.pop("outlets_w", None)
            return Reading(float(sum(known)), self._own.taken_s)
        if any(number not in rows for number in self._config.outlets):
            return Failed("no_such_outlet", self._read_all_s)
        if self._own.failed_s is not None:
            return Failed(self._own.reason, self._own.failed_s)
        since_s = self._missing_since_s.setdefault("outlets_w", self._own.taken_s)
        return Failed("outlet_without_reading", since_s)


def _any_power(found: Decoded) -> bool:
    return any(row.get("power_w") is not None for row in found.of("outlets"))


def _fill(kind: type[Any], row: dict[str, Any]) -> Any:
    """A row as the model's struct: the quantities that it has."""
    return kind(**{name: row[name] for name in kind.__struct_fields__ if name in row})


def _list(numbers: Any) -> str:
    return ", ".join(str(number) for number in numbers)


def _wh_per_count(profile: Profile) -> float:
    """Of the device's own total, 0 where it has none or tells its unit itself."""
    fields = profile.scalars.get("energy_wh", ())
    return fields[0].scale if len(fields) == 1 and not fields[0].digits and not fields[0].units else 0.0
