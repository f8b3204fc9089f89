"""The running parts of the agent, wired together: sockets, sources, loops, actuators, view, watchdog, reload."""

import asyncio
import contextlib
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from nodewarden import __version__, paths, sdnotify, watchdog
from nodewarden.actuators.job import JobActuator
from nodewarden.actuators.power_cap import PowerCapActuator
from nodewarden.api.control_server import ControlServer, admin_gid
from nodewarden.api.http import HttpServer
from nodewarden.api.view import LoopHealth, View
from nodewarden.clock import Clock
from nodewarden.config import Config, check_against_boards, load_config, xid_table_of
from nodewarden.control import ControlLoop, NodeLimits
from nodewarden.errors import AlreadyRunningError, ConfigError, NodewardenError, RefusedError
from nodewarden.gpuhelper.client import HelperClient
from nodewarden.gpuhelper.link import HelperLink
from nodewarden.gpuhelper.wire import HelperEvent, LedgerEntry
from nodewarden.jobs.server import JobServer
from nodewarden.journal import Journal, Recorder
from nodewarden.model.events import Event
from nodewarden.model.readings import Reading, value_or_none
from nodewarden.node import AgentNode
from nodewarden.pdus import PduLoops
from nodewarden.sampling import Progress, every
from nodewarden.sources.gpu import GpuSource
from nodewarden.sources.gpu_counters import GpuCounters
from nodewarden.sources.gpu_quick import QuickSampling
from nodewarden.sources.host.source import HostSource
from nodewarden.sources.workload import WorkloadSource
from nodewarden.sources.xid import XidSource
from nodewarden.state import StateFile
from nodewarden.store import SnapshotStore
from nodewarden_alerts.conditions import Facts, Problem
from nodewarden_alerts.engine import ConditionEngine, health_of
from nodewarden_alerts.growth import Growth
from nodewarden_exporters.dcgm import DcgmPage
from nodewarden_exporters.prometheus import Renderer

if TYPE_CHECKING:
    from nodewarden.sources.bmc.source import RedfishSource
    from nodewarden_exporters.mqtt import MqttPublisher

log = structlog.get_logger("nodewarden.agent")

# Problems whose begin and end the journal has already, as an event of the part that saw it.
TOLD_BY_EVENTS = frozenset(
    {"gpu_capped", "gpu_lost", "disarmed", "cap_kept", "cap_vanished", "foreign_cap", "clock_stepped", "ladder_high"}
    | {"cap_not_written", "config_reload_failed", "xid_critical", "xid_warning", "xid_application"}
)
LIVED_S = 300.0
FULL_SWEEP_S = 1.0
HELPER_GRACE_S = 3.0
FIRST_HOST_S = 2.0


def prepare_folders(runtime_dir: Path) -> None:
    """Make control/ and job/ where we may; under systemd tmpfiles has made them."""
    for folder in (runtime_dir, runtime_dir / "control", runtime_dir / "job"):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)


class Agent:
    """Everything that runs, built once."""

    def __init__(self, config: Config, config_path: Path, runtime_dir: Path, state: StateFile, clock: Clock) -> None:
        self._config = config
        self._config_path = config_path
        self._runtime_dir = runtime_dir
        self._state = state
        self._clock = clock
        self._started_s = clock.now_s()
        self._config_error: str | None = None
        self._helper_events: deque[HelperEvent] = deque(maxlen=200)
        self._engine = ConditionEngine()
        self._growth = Growth()
        self._journal = Journal(
            state.folder / "journal.db",
            max_age_s=config.journal.max_age_days * 86400,
            max_entries=config.journal.max_entries,
        )
        self._recorder = Recorder(self._journal, clock.now_s, clock.wall_s)
        self._jobs = JobServer(
            paths.job_socket(runtime_dir),
            clock,
            verify=config.jobs.verify,
            pids_of=self._pids_of,
            on_event=self._recorder.event,
        )
        self._store = SnapshotStore(clock, self._jobs.jobs)
        self._renderer = Renderer()
        # Below a second only what changes so fast is read so often; the rest, and decisions, keep to a second.
        full_s = max(FULL_SWEEP_S, config.sampling.gpu_fast_s)
        quick_s = config.sampling.gpu_fast_s
        self._link = HelperLink(
            HelperClient(paths.gpu_socket(runtime_dir), clock),
            clock,
            self._recorder.event,
            self._heard_of_helper,
            reads_every_s=full_s,
        )
        self._gpu_counters = GpuCounters(state.folder / "energy.json")
        self._gpus = GpuSource(
            self._link,
            self._store,
            clock,
            fast_period_s=full_s,
            slow_period_s=config.sampling.gpu_slow_s,
            raw_links=config.sampling.nvlink_raw,
            counters=self._gpu_counters,
            quick=QuickSampling(quick_s, self._renderer.observe_quick) if quick_s < full_s else None,
            on_event=self._recorder.event,
        )
        self._xids = XidSource(
            self._link,
            self._store,
            clock,
            folder=state.folder,
            table=xid_table_of(config, config_path),
            on_event=self._recorder.event,
        )
        host_s = max(1.0, config.sampling.host_s)
        self._host = (
            HostSource(self._link, self._store, clock, root=paths.host_root(), period_s=host_s)
            if config.sampling.host_s > 0
            else None
        )
        self._workload = WorkloadSource(
            self._store,
            clock,
            period_s=config.sampling.gpu_slow_s,
            prolog_dir=Path(config.jobs.prolog_dir) if config.jobs.prolog_dir is not None else None,
            kubelet=config.jobs.pod_resources,
        )
        self._caps = PowerCapActuator(self._link, clock, cap_now_w=self._cap_now_w, on_event=self._recorder.event)
        self._job_actuator = JobActuator(self._jobs, clock, self._recorder.event)
        self._control = ControlLoop(
            self._store,
            self._link,
            self._caps,
            self._job_actuator,
            self._recorder,
            clock,
            bounds=_bounds(config),
            period_s=full_s,
            on_turn=self._turned,
        )
        self._renderer.own.config_read(taken=True, unix_s=clock.wall_s())
        self._mqtt = self._new_publisher()
        self._pdus = PduLoops(self._store, clock, config.node.name, self._recorder.event, self._new_progress)
        self._bmc = self._new_bmc()
        self.node = AgentNode(
            control=self._control,
            link=self._link,
            job_actuator=self._job_actuator,
            jobs=self._jobs,
            journal=self._journal,
            recorder=self._recorder,
            state=state,
            clock=clock,
            xids=self._xids,
            refresh=self._publish,
        )
        self._control_server = ControlServer(
            paths.control_socket(runtime_dir), self.node, admin_gid=admin_gid(), own_uid=_own_uid()
        )
        self._http = HttpServer(config.http.listen, self.node.view, self._renderer, clock, DcgmPage())
        self._progress = {
            "gpu": self._new_progress("gpu", full_s, critical=True),
            "gpu_slow": self._new_progress("gpu_slow", config.sampling.gpu_slow_s),
            "xid": self._new_progress("xid", 1.0),
            "control": self._new_progress("control", full_s, critical=True),
        }
        if self._host is not None:
            self._progress["host"] = self._new_progress("host", host_s)
        self._first_host: asyncio.Task[None] | None = None

    def _new_publisher(self) -> "MqttPublisher | None":
        """None without a broker, which then costs neither memory nor time."""
        config = self._config
        if config.mqtt is None:
            return None
        from nodewarden_exporters.mqtt import MqttPublisher  # noqa: PLC0415
        from nodewarden_exporters.mqtt_metrics import MqttCollector  # noqa: PLC0415

        client_id = f"nodewarden-{config.node.name}-{self._state.instance}"
        publisher = MqttPublisher(config.mqtt, config.node.name, __version__, client_id, self._clock)
        self._renderer.own.registry.register(MqttCollector(lambda: publisher.status))
        self._recorder.listeners.append(publisher.event)
        return publisher

    def _new_bmc(self) -> "RedfishSource | None":
        """None without a BMC, which then costs neither memory nor time."""
        config = self._config.bmc
        if config is None:
            return None
        from nodewarden.sources.bmc.access import source_of  # noqa: PLC0415

        return source_of(config, self._store, self._clock, self._config.node.name)

    # Life ---------------------------------------------------------------------------------------------------------

    async def open_sockets(self) -> None:
        """Bind the Unix sockets; raises where something else is in their place."""
        await self._control_server.start()
        self._link_state_dir()
        await self._jobs.start()

    def _link_state_dir(self) -> None:
        """Say where the state is; `nodectl` must find it without an agent. The control socket's lock makes it ours."""
        link = paths.state_link(self._runtime_dir)
        new = link.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(self._state.folder.absolute())
            new.rename(link)
        except OSError as error:
            log.warning("state_link_not_set", path=str(link), reason=str(error))

    async def wait_out_start_delay(self, stop: asyncio.Event) -> None:
        """After quick failures in a row, wait before devices are opened; the service's start time-out is extended."""
        delay_s = self._state.count_start()
        if delay_s > 0:
            log.warning("start_delayed", wait_s=delay_s, reason="it ended soon after each of the last starts")
        until_s = self._clock.now_s() + delay_s
        while (left_s := until_s - self._clock.now_s()) > 0 and not stop.is_set():
            sdnotify.notify(STATUS=f"waiting {left_s:.0f} s after quick failures", EXTEND_TIMEOUT_USEC=str(15_000_000))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._clock.real_s(min(5.0, left_s))):
                    await stop.wait()

    async def run(self, *, helper_expected: bool = False) -> None:
        """All loops, until cancelled. `helper_expected`: one is being started, so give it a moment."""
        if self._state.armed:
            self._control.set_armed(armed=True)
        sdnotify.notify(STATUS="trying each source once", EXTEND_TIMEOUT_USEC=str(30_000_000))
        if self._config.pdu:
            await self._pdus.configure(self._config)
        await self._http.start()
        await self._first_sweep(helper_expected=helper_expected)
        await self._first_look_at_the_host()
        await self._control.turn()
        sdnotify.notify(READY="1", STATUS=self._status_line())
        log.info("ready", gpus=len(self._store.gpus), pdus=len(self._store.pdus), armed=self._control.armed)
        async with asyncio.TaskGroup() as group:
            group.create_task(every(self._clock, self._progress["gpu"], self._gpus.read_fast), name="gpu")
            group.create_task(every(self._clock, self._progress["gpu_slow"], self._read_slow), name="gpu_slow")
            group.create_task(self._read_when_nudged(), name="gpu_nudged")
            group.create_task(self._control.run(), name="control")
            group.create_task(every(self._clock, Progress(1.0, self._clock.now_s()), self._heartbeat), name="helper")
            group.create_task(every(self._clock, self._progress["xid"], self._xids.turn), name="xid")
            group.create_task(every(self._clock, Progress(5.0, self._clock.now_s()), self._mend), name="mend")
            group.create_task(every(self._clock, Progress(60.0, self._clock.now_s()), self._keep_counters), name="keep")
            if self._host is not None:
                group.create_task(self._watch_host(self._host), name="host")
            if self._bmc is not None and self._config.bmc is not None:
                progress = self._new_progress("bmc", self._config.bmc.period_s)
                group.create_task(every(self._clock, progress, self._bmc.read), name="bmc")
            group.create_task(self._pdus.run(), name="pdus")
            if self._mqtt is not None:
                group.create_task(self._mqtt.run(), name="mqtt")
            group.create_task(watchdog.feed(self._clock, self._stalled_critical, self._status_line), name="watchdog")
            group.create_task(self._note_that_it_lived(), name="lived")

    async def _read_when_nudged(self) -> None:
        """A GPU has become much hotter between two sweeps: look, and decide, now."""
        nudged = asyncio.Event()
        self._link.client.on_nudge = nudged.set
        while True:
            await nudged.wait()
            nudged.clear()
            await self._gpus.read_fast()

    async def _read_slow(self) -> None:
        """What the boards say slowly, then who is on them."""
        await self._gpus.read_slow()
        await self._workload.read()

    async def _heartbeat(self) -> None:
        """Be heard by the helper every second, however rarely GPUs are read."""
        await self._link.keep()

    async def _keep_counters(self) -> None:
        """Energy totals go on after a restart; a crash costs them the last minute."""
        await asyncio.to_thread(self._gpu_counters.save)

    async def _first_sweep(self, *, helper_expected: bool) -> None:
        """Read the GPUs once. A helper that is starting, or serves an agent that has just gone, gets a moment.

        Raises:
            AlreadyRunningError: the other agent is still there.
        """
        until_s = self._clock.now_s() + HELPER_GRACE_S
        waiting_for = {"busy", "missing"} if helper_expected else {"busy"}
        while True:
            await self._gpus.read_fast()
            helper = self._store.helper
            if helper.state not in waiting_for:
                return
            if self._clock.now_s() > until_s:
                break
            await self._clock.sleep_until(self._clock.now_s() + 0.1)
        if helper.state == "busy":
            raise AlreadyRunningError(f"the GPU helper serves another agent: {helper.text}")

    async def _first_look_at_the_host(self) -> None:
        """Read the host once; one whose files hang is waited for by its loop, not by the start."""
        if self._host is not None:
            self._first_host = asyncio.create_task(self._host.read(), name="host, first")
            await asyncio.wait({self._first_host}, timeout=self._clock.real_s(FIRST_HOST_S))

    async def _watch_host(self, host: HostSource) -> None:
        if self._first_host is not None:
            await self._first_host
        # The second reading comes soon: power is the difference of two.
        await every(self._clock, self._progress["host"], host.read, offset_s=FIRST_HOST_S)

    async def close(self) -> None:
        """Release jobs first, then say goodbye to the helper (caps stay for the next agent), then close."""
        sdnotify.notify(STOPPING="1")
        self._job_actuator.release_all()
        await self._caps.settle(1.0)
        await self._link.goodbye()
        await self._http.close()
        await self._control_server.close()
        await self._jobs.close()
        await self._link.client.close()
        await self._pdus.close()
        if self._bmc is not None:
            await self._bmc.close()
        await self._keep_counters()
        await asyncio.to_thread(self._journal.close)
        log.info("stopped")

    def reload(self) -> None:
        """Read the file again; on any mistake the present configuration stays in force (F69)."""
        sdnotify.notify(RELOADING="1")
        try:
            config = load_config(self._config_path)
            check_against_boards(config, self._config_path, [gpu.min_w for gpu in self._control.limits.gpus.values()])
        except ConfigError as error:
            self._config_error = "; ".join(error.problems)
            self._recorder.event(
                Event("config_reload_failed", None, f"kept the old configuration: {self._config_error}")
            )
        else:
            self._config_error = None
            fixed = [
                name
                for name in ("node", "sampling", "http", "jobs", "journal", "mqtt", "bmc")
                if getattr(config, name) != getattr(self._config, name)
            ]
            text = f"[{'], ['.join(fixed)}] take effect at the next start" if fixed else "all of it is in force"
            self._config = config
            self._xids.table = xid_table_of(config, self._config_path)
            self._control.bounds = _bounds(config)
            self._control.set_armed(armed=self._control.armed)
            self._pdus.reconfigure(config)
            self._recorder.event(Event("config_reloaded", None, text))
        self._renderer.own.config_read(taken=self._config_error is None, unix_s=self._clock.wall_s())
        sdnotify.notify(READY="1", STATUS=self._status_line())

    def _new_progress(self, name: str, period_s: float, *, critical: bool = False) -> Progress:
        own = self._renderer.own

        def turned(took_s: float, missed: int) -> None:
            own.ticked(name, took_s)
            if missed:
                own.skipped(name, missed)

        return Progress(period_s, self._clock.now_s(), critical=critical, on_turn=turned)

    def _heard_of_helper(self, event: HelperEvent) -> None:
        self._helper_events.append(event)
        if event.code == "cap_vanished" and event.uuid is not None:
            self._control.give_up_manual(event.uuid)
            self._gpu_counters.cap_vanished(event.uuid)

    # What the parts ask of each other -----------------------------------------------------------------------------

    def _pids_of(self, uuid: str) -> frozenset[int] | None:
        gpu = self._store.gpus.get(uuid)
        return frozenset(gpu.pids.value) if gpu is not None and isinstance(gpu.pids, Reading) else None

    def _cap_now_w(self, uuid: str) -> float | None:
        gpu = self._store.gpus.get(uuid)
        return value_or_none(gpu.cap_w) if gpu is not None else None

    def _turned(self) -> None:
        """The control loop finished a turn."""
        progress = self._progress["control"]
        progress.turned_s = self._clock.now_s()
        progress.turned(self._control.turn_took_s)
        self._renderer.own.journal("ok" if self._journal.problem is None else "degraded")
        self._publish()

    def _publish(self) -> None:
        """What holds now, and what readers see."""
        now_s = self._clock.now_s()
        control = self._control
        self._growth.observe(control.snapshot)
        ledger = tuple(self._link.entries.values())
        facts = Facts(
            snapshot=control.snapshot,
            limits=control.limits,
            setpoints=control.setpoints,
            armed=control.armed,
            armed_since_s=control.armed_since_s,
            expected_gpus=self._config.node.expected_gpus or 0,
            ledger=ledger,
            events=tuple(self._helper_events),
            journal_problem=self._journal.problem or self._state.problem,
            http_problem=self._http.problem,
            mqtt_problem=self._mqtt_problem(),
            config_problem=self._config_error,
            refusals=self._caps.refusals(),
            growth=self._growth.within_window(now_s),
            stalled=self._stalled(now_s),
            clock_stepped_at_s=control.clock_step_at_s,
            clock_step_s=control.clock_step_s or 0.0,
            wall_offset_s=self._clock.wall_s() - now_s,
        )
        problems = self._engine.evaluate(facts, now_s)
        for change in self._engine.changes:
            if change.problem.code in TOLD_BY_EVENTS:
                continue
            self._recorder.event(
                Event(f"{change.problem.code}_{change.what}", change.problem.uuid, change.problem.text)
            )
        view = self._view(now_s, problems, ledger)
        self._renderer.observe(view)
        if self._mqtt is not None:
            self._mqtt.observe(view)
        self.node.publish(view)

    def _mqtt_problem(self) -> str | None:
        trouble = self._mqtt.status.trouble if self._mqtt is not None else None
        return trouble.text if trouble is not None else None

    def _view(self, now_s: float, problems: list[Problem], ledger: tuple[LedgerEntry, ...]) -> View:
        control = self._control
        return View(
            node_name=self._config.node.name,
            now_s=now_s,
            wall_s=self._clock.wall_s(),
            started_s=self._started_s,
            version=__version__,
            snapshot=control.snapshot,
            limits=control.limits,
            setpoints=control.setpoints,
            armed=control.armed,
            armed_since_s=control.armed_since_s,
            health=health_of(problems),
            problems=tuple(problems),
            ledger=ledger,
            caps_since={uuid: own.since_s for uuid, own in self._caps.own.items()},
            refusals={uuid: trouble.text for uuid, trouble in self._caps.trouble.items()},
            loops=self._loops(),
            expected_gpus=self._config.node.expected_gpus,
            config_path=str(self._config_path),
            config_error=self._config_error,
            http_listen=self._config.http.listen,
        )

    def _loops(self) -> dict[str, LoopHealth]:
        loops = {
            name: LoopHealth(progress_s=p.turned_s, period_s=p.period_s, critical=p.critical)
            for name, p in (self._progress | self._pdus.progress).items()
        }
        loops["jobs"] = LoopHealth(progress_s=self._jobs.progress_s, period_s=1.0, critical=False)
        return loops

    def _stalled(self, now_s: float) -> dict[str, float]:
        return {name: loop.progress_s for name, loop in self._loops().items() if loop.is_stalled(now_s)}

    def _status_line(self) -> str:
        try:
            view = self.node.view()
        except RefusedError:
            return "starting"
        mode = "armed" if view.armed else "disarmed"
        return f"{view.health}, {mode}, {len(view.snapshot.gpus)} GPUs, ladder level {int(view.setpoints.level)}"

    def _stalled_critical(self) -> list[str]:
        stalled = self._stalled(self._clock.now_s())
        return [name for name, progress in self._progress.items() if progress.critical and name in stalled]

    async def _note_that_it_lived(self) -> None:
        """Quick failures in a row end here: this start has run well."""
        await self._clock.sleep_until(self._started_s + LIVED_S)
        self._state.lived()

    async def _mend(self) -> None:
        """What somebody or a full disk has broken for a while is made good."""
        self._state.retry()
        for server in (self._control_server, self._jobs):
            try:
                await server.listen_again()
            except (NodewardenError, OSError) as error:
                log.error("socket_not_made", detail=str(error))


def _own_uid() -> int | None:
    """Our uid when a person started us; None as a service, where the agent's user is nobody to ask for changes."""
    return None if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()) else os.geteuid()


def _bounds(config: Config) -> NodeLimits:
    return NodeLimits(
        target_margin_c=config.limits.target_margin_c,
        node_power_w=config.limits.node_power_w,
        failsafe_w=config.limits.failsafe_w,
        outlets={pdu.name: pdu.limit_w for pdu in config.pdu if pdu.limit_w is not None},
    )
