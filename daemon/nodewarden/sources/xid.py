"""Errors of GPUs and NVSwitches: takes them from the helper, counts each once, keeps what is not over.

The driver's events and the kernel's log tell of the same errors: `xid_merge` says which are one. Counts and the place
up to which they were counted are kept in the state directory (`xid_memory`), so that neither a restart of the agent nor
one of the helper counts anything twice. What an error number means, and when it is over, is in the table
(`nodewarden.xid_table`). Nothing here ever touches a GPU or a cap.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from nodewarden.clock import Clock
from nodewarden.devices.kernel_log import whole_bus_id
from nodewarden.errors import HelperError
from nodewarden.gpuhelper import wire
from nodewarden.gpuhelper.ledger import boot_id
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.model.events import Event
from nodewarden.model.readings import value_or_none
from nodewarden.model.xids import GpuXids, Incident, SwitchErrors
from nodewarden.sources.xid_memory import (
    GpuMemory,
    OpenIncident,
    SwitchMemory,
    Waiting,
    encoded,
    load_memory,
    save_memory,
)
from nodewarden.sources.xid_merge import NOTICE_WINDOW_S, Merge, Source
from nodewarden.sources.xid_telling import Telling
from nodewarden.store import SnapshotStore
from nodewarden.xid_table import XidTable

log = structlog.get_logger("nodewarden.sources")

ASK_EVERY_S = 10.0
"""The helper is asked at least so often; at once when it says that there is something."""
STALE_S = 35.0
LATE_S = 120.0
"""What is told later than this after it happened is told with its age."""
MAX_REPLIES = 16
MAX_CODES = 32
"""Numbers per GPU or switch that are counted by themselves; all others together as "other"."""
MAX_GPUS = 64
MAX_SWITCHES = 16
OTHER = "other"
_NOT_HERE = frozenset({"", "off", "starting", "not_supported", "not_in_driver"})
_SEVERITIES = ("critical", "warning", "application")


class XidSource:
    """One for the node.

    Args:
        folder: the state directory.
        table: what the numbers mean; may be exchanged.
        on_event: told of each error, and when it is over; a storm is few calls.
        boot: id of this boot.
    """

    def __init__(
        self,
        link: HelperLink,
        store: SnapshotStore,
        clock: Clock,
        *,
        folder: Path,
        table: XidTable,
        on_event: Callable[[Event], None],
        boot: str | None = None,
    ) -> None:
        self.table = table
        self._link = link
        self._store = store
        self._clock = clock
        self._folder = folder
        self._on_event = on_event
        self._memory = load_memory(folder, boot_id() if boot is None else boot)
        self._merge = Merge()
        for waiting in self._memory.waiting:
            self._merge.open[waiting.uuid, waiting.code] = waiting.reported
        self._telling = Telling()
        self._asked_s = float("-inf")
        self._asked_errors = -1
        self._adoptions = 0
        self._mute_adoption = -1  # on this connection nobody understands us
        self._health: dict[str, str] = {}
        self._problem = ""
        self._unsaved = False
        self._publish()

    async def turn(self) -> None:
        """Once a second: take what is there, end what is over, tell people. Never raises for a sick helper."""
        now_s = self._clock.now_s()
        changed = self._end_what_is_over(now_s)
        if self._link.adopted and self._is_due(now_s):
            changed |= await self._take()
        for (uuid, _), text in self._telling.due(now_s, self._line):
            is_switch = uuid in self._memory.switches
            self._on_event(Event("nvswitch_sxid", None, text) if is_switch else Event("gpu_xid", uuid, text))
        if changed:
            self._publish()
        if changed or self._unsaved:
            self._unsaved = False
            await self._save()

    def clear(self, uuids: Sequence[str]) -> dict[str, list[int]]:
        """A person says that these GPUs are well: nothing of theirs is open any more. The counts stay."""
        cleared = {uuid: sorted(gpu.incidents) for uuid in uuids if (gpu := self._memory.gpus.get(uuid)) is not None}
        for uuid in cleared:
            self._memory.gpus[uuid].incidents.clear()
        self._publish()
        self._unsaved = True
        return cleared

    # Taking -----------------------------------------------------------------------------------------------------------

    def _is_due(self, now_s: float) -> bool:
        return self._link.adoptions != self._mute_adoption and (
            self._link.errors != self._asked_errors
            or self._link.adoptions != self._adoptions
            or now_s - self._asked_s >= ASK_EVERY_S
        )

    async def _take(self) -> bool:
        memory, now_s = self._memory, self._clock.now_s()
        self._asked_s, self._asked_errors, self._adoptions = now_s, self._link.errors, self._link.adoptions
        found = False
        for _ in range(MAX_REPLIES):
            try:
                reply = await self._link.client.gpu_errors(
                    epoch=memory.epoch, after=memory.after, kernel_after=memory.kernel_after
                )
            except HelperError as failure:
                self._asked_errors = -1  # again at the next turn
                if failure.code == "bad_request":  # a helper of before an upgrade, which bears few of these
                    self._mute_adoption = self._link.adoptions
                log.debug("gpu_errors_not_taken", reason=str(failure))
                break
            found |= bool(reply.errors) or (memory.epoch, memory.after) != (reply.epoch, reply.last)
            memory.epoch, memory.after = reply.epoch, reply.last
            for error in reply.errors:
                memory.kernel_after = max(memory.kernel_after, error.kernel_number)
                if error.kind == "sxid":
                    self._count_switch(error)
                else:
                    self._count(error)
            self._note_listening(reply)
            if not reply.more:
                break
        return found

    def _note_listening(self, reply: wire.EventsReply) -> None:
        now_s = self._clock.now_s()
        for name, listening in (("xid/nvml", reply.driver), ("xid/kernel", reply.kernel)):
            if not listening.up and listening.reason in _NOT_HERE:
                self._store.forget([name])
            elif listening.up:
                self._store.record(name, STALE_S).succeeded(now_s, 0.0)
            else:
                self._store.record(name, STALE_S).failed(now_s, listening.reason)

    def _count(self, error: wire.GpuError) -> None:
        uuid = error.uuid or self._uuid_at(error.bus_id)
        gpu = self._memory.gpus.get(uuid)
        if gpu is None:
            if len(self._memory.gpus) >= MAX_GPUS:
                return
            gpu = self._memory.gpus[uuid] = GpuMemory()
        gpu.bus_id = error.bus_id or gpu.bus_id
        source: Source = "notice" if error.kind == "off_bus" else error.source
        new = self._merge.add((uuid, error.code), source, error.first_s, error.last_s, error.count)
        gpu.by_source[error.source] = gpu.by_source.get(error.source, 0) + error.count
        incident = gpu.incidents.get(error.code)
        if new:
            name = _counted_as(error.code, gpu.by_code)
            gpu.by_code[name] = gpu.by_code.get(name, 0) + new
            gpu.total += new
            wall_s = self._clock.wall_s() - (self._clock.now_s() - error.last_s)
            gpu.last_wall_s = max(gpu.last_wall_s or wall_s, wall_s)
            over_after_s = self.table.row(error.code).over_after_s
            is_over = over_after_s is not None and self._clock.now_s() >= error.last_s + over_after_s
            if incident is None and not is_over and len(gpu.incidents) < MAX_CODES:
                incident = gpu.incidents[error.code] = OpenIncident(count=0, first_s=error.first_s, last_s=error.last_s)
        if incident is not None:
            incident.count += new
            incident.first_s = min(incident.first_s, error.first_s)
            incident.last_s = max(incident.last_s, error.last_s)
            if error.text:
                incident.text, incident.pid, incident.process = error.text, error.pid, error.process
        self._telling.add((uuid, error.code), new, error.text if new or incident is None else "")

    def _count_switch(self, error: wire.GpuError) -> None:
        switches = self._memory.switches
        if error.bus_id not in switches and len(switches) >= MAX_SWITCHES:
            return
        switch = switches.setdefault(error.bus_id, SwitchMemory())
        name = _counted_as(error.code, switch.by_code)
        switch.by_code[name] = switch.by_code.get(name, 0) + error.count
        switch.last_code, switch.last_s, switch.last_text = error.code, error.last_s, error.text
        self._telling.add((error.bus_id, error.code), error.count, error.text)

    def _uuid_at(self, bus_id: str) -> str:
        """For a GPU that the helper has not seen yet, or not any more."""
        if not bus_id:
            return "pci-unknown"
        for uuid, gpu in self._store.gpus.items():
            if whole_bus_id(gpu.pci_bus_id) == bus_id:
                return uuid
        for uuid, memory in self._memory.gpus.items():
            if memory.bus_id == bus_id:
                return uuid
        return f"pci-{bus_id}"

    # What is over -----------------------------------------------------------------------------------------------------

    def _end_what_is_over(self, now_s: float) -> bool:
        changed = False
        self._merge.forget_before(now_s - 2 * NOTICE_WINDOW_S)
        for uuid, memory in self._memory.gpus.items():
            was_reset = self._was_reset(uuid, memory)
            for code, incident in list(memory.incidents.items()):
                over_s = self._over_s(code, incident)
                if not was_reset and (over_s is None or now_s < over_s):
                    continue
                del memory.incidents[code]
                changed = True
                why = "it was reset" if was_reset else "quiet since"
                self._on_event(Event("gpu_xid_over", uuid, f"{self._name(uuid)}: Xid {code} is over: {why}"))
        return changed

    def _over_s(self, code: int, incident: OpenIncident) -> float | None:
        after_s = self.table.row(code).over_after_s
        return None if after_s is None else incident.last_s + after_s

    def _was_reset(self, uuid: str, memory: GpuMemory) -> bool:
        """The energy counter began anew, or the GPU is back after it was lost, which it is by a reset only."""
        gpu = self._store.gpus.get(uuid)
        if gpu is None:
            return False
        before, self._health[uuid] = self._health.get(uuid, gpu.health), gpu.health
        epoch = value_or_none(gpu.number("energy_epoch"))
        known = memory.energy_epoch
        if epoch is not None:
            memory.energy_epoch = epoch
        began_anew = epoch is not None and known is not None and epoch > known
        return began_anew or (gpu.health == "ok" and before in {"lost", "absent"})

    # Showing ----------------------------------------------------------------------------------------------------------

    def _name(self, uuid: str) -> str:
        gpu = self._store.gpus.get(uuid)
        if gpu is not None:
            return f"{gpu.name} ({gpu.pci_bus_id or uuid})"
        return f"NVSwitch {uuid}" if uuid in self._memory.switches else f"GPU at {uuid.removeprefix('pci-')}"

    def _line(self, key: tuple[str, int], count: int, told_before: bool, words: str) -> str:
        uuid, code = key
        if uuid in self._memory.switches:
            what, last_s = f"SXid {code}", self._memory.switches[uuid].last_s
        else:
            gpu = self._memory.gpus[uuid]
            last_s = self._clock.now_s() if gpu.last_wall_s is None else self._boot_s(gpu.last_wall_s)
            what = f"Xid {code} ({self.table.row(code).name})"
            incident = gpu.incidents.get(code)
            words = words or (incident.text if incident is not None and not told_before else "")
            if incident is not None and incident.pid is not None:
                what += f", pid {incident.pid}{f' {incident.process}' if incident.process else ''}"
        late_s = self._clock.now_s() - last_s
        words = f"{words} ({late_s / 60:.0f} min ago)".strip() if late_s > LATE_S else words
        times = f", {count} {'more' if told_before else 'times'}" if count > 1 or told_before else ""
        return f"{self._name(uuid)}: {what}{times}{f': {words}' if words else ''}"

    def _boot_s(self, wall_s: float) -> float:
        return self._clock.now_s() - (self._clock.wall_s() - wall_s)

    def _publish(self) -> None:
        self._store.xids = {
            uuid: GpuXids(
                total=gpu.total,
                by_code=dict(gpu.by_code),
                by_source=dict(gpu.by_source),
                last_s=None if gpu.last_wall_s is None else self._boot_s(gpu.last_wall_s),
                incidents=self._incidents(gpu),
            )
            for uuid, gpu in self._memory.gpus.items()
        }
        self._store.switches = {
            bus_id: SwitchErrors(
                by_code=dict(switch.by_code),
                last_code=switch.last_code,
                last_s=switch.last_s,
                last_text=switch.last_text,
                fatal=switch.last_text.lower().startswith("fatal"),
            )
            for bus_id, switch in self._memory.switches.items()
        }

    def _incidents(self, gpu: GpuMemory) -> tuple[Incident, ...]:
        shown = [
            Incident(
                code=code,
                row=self.table.row(code),
                count=each.count,
                first_s=each.first_s,
                last_s=each.last_s,
                over_s=self._over_s(code, each),
                text=each.text,
                pid=each.pid,
                process=each.process,
            )
            for code, each in gpu.incidents.items()
        ]
        return tuple(sorted(shown, key=lambda each: (_SEVERITIES.index(each.row.severity), -each.last_s)))

    async def _save(self) -> None:
        """Off the event loop: a slow disk stops nothing but this account."""
        self._memory.waiting = [
            Waiting(uuid=uuid, code=code, reported=reported) for (uuid, code), reported in self._merge.open.items()
        ]
        try:
            await asyncio.to_thread(save_memory, self._folder, encoded(self._memory))
        except OSError as error:
            if str(error) != self._problem:
                log.warning("xids_not_kept", reason=str(error))
            self._problem = str(error)
        else:
            self._problem = ""


def _counted_as(code: int, counts: dict[str, int]) -> str:
    """Its own number, or "other" when there are too many."""
    return str(code) if str(code) in counts or len(counts) < MAX_CODES else OTHER
