"""Views of a node as the agent would publish them: eight H100, one hot; used by the tests of what people see."""

import msgspec

from nodewarden.api.view import LoopHealth, View
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.readings import Failed, Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, Forecast, Level, Protects, Setpoints
from nodewarden.model.snapshot import (
    GpuSnapshot,
    HelperStatus,
    JobSnapshot,
    LinkState,
    NodeSnapshot,
    OutletSnapshot,
    PduSnapshot,
    PhaseSnapshot,
    SourceStatus,
)
from nodewarden_alerts.conditions import Problem
from support.host_values import a_host

NOW_S = 50_000.0
WALL_S = 1_796_040_000.0  # 2026-11-30T12:00:00Z
PRIOR_W = 700.0


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-aaaa-4bbb-8ccc-{index:012x}"


def gpu(index: int, *, junction_c: float = 71, power_w: float = 640, cap_w: float = PRIOR_W, **changes) -> GpuSnapshot:
    at_s = NOW_S - 0.4

    def read(value):
        return Reading(value, at_s)

    found = GpuSnapshot(
        uuid=uuid_of(index),
        index=index,
        model="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{0x18 + index:02X}:00.0",
        health_since_s=NOW_S - 40_000,
        junction_c=read(junction_c),
        hbm_c=read(junction_c + 3),
        margin_c=read(89 - junction_c),
        power_w=read(power_w),
        power_instant_w=read(power_w + 3),
        energy_j=read(1.5e9),
        cap_w=read(cap_w),
        enforced_w=read(cap_w),
        utilisation=read(0.99),
        memory_used_bytes=read(71e9),
        memory_total_bytes=read(85.5e9),
        sm_clock_hz=read(1.755e9),
        memory_clock_hz=read(2.619e9),
        slow=read(()),
        links=tuple(LinkState(link, active=True, tx_bytes=1e12, rx_bytes=1e12) for link in range(18)),
        links_taken_at_s=at_s,
        pids=read((4711 + index,)),
    )
    return msgspec.structs.replace(found, **changes)


def limits_of(count: int = 8) -> Limits:
    one = GpuLimits(
        min_w=200, max_w=700, prior_w=PRIOR_W, kind="tlimit", max_op_c=0, slowdown_c=-2, shutdown_c=-8, hbm_max_op_c=95
    )
    return Limits(gpus={uuid_of(i): one for i in range(count)}, outlets={"rack12-a": 6000.0})


def calm(count: int = 8) -> View:
    """Everything is well; armed."""
    gpus = {uuid_of(i): gpu(i, junction_c=66 + i, power_w=610.0 + 5 * i) for i in range(count)}
    sources = {
        f"gpu/{u}": SourceStatus(name=f"gpu/{u}", up=True, last_success_s=NOW_S - 0.4, duration_s=0.012) for u in gpus
    }
    sources["host"] = SourceStatus(name="host", up=True, last_success_s=NOW_S - 2.0, stale_after_s=30.0)
    sources["pdu/rack12-a"] = SourceStatus(
        name="pdu/rack12-a", up=True, last_success_s=NOW_S - 3.1, duration_s=0.08, stale_after_s=15
    )
    pdu = PduSnapshot(
        name="rack12-a",
        feed="A",
        vendor="APC",
        model="AP8959EU3",
        profile="apc-rpdu2",
        up=True,
        since_s=NOW_S - 30_000,
        limit_w=6000,
        mapped_outlets=(7, 8),
        power_w=Reading(8120.0, NOW_S - 3.1),
        outlets_w=Reading(5310.0, NOW_S - 3.1),
        phases=(PhaseSnapshot(id="L1", voltage_v=231, current_a=35.2, power_w=8120),),
        outlets=(
            OutletSnapshot(index=7, name="gpu-node-07 A", power_w=2660, current_a=11.5, state="on"),
            OutletSnapshot(index=8, name="gpu-node-07 B", power_w=2650, current_a=11.4, state="on"),
        ),
    )
    job = JobSnapshot(
        id="slurm-4711",
        gpus=tuple(gpus),
        ranks=8,
        world=8,
        framework="torch",
        step=18230,
        steps_per_s=0.5,
        ckpt_s=4.0,
        capabilities=("checkpoint", "throttle"),
        verified=True,
        pids=tuple(4711 + i for i in range(8)),
        last_checkpoint_at_s=NOW_S - 812,
    )
    setpoints = Setpoints(
        caps={u: CapSetpoint(w=PRIOR_W) for u in gpus},
        forecast={
            u: Forecast(margin_to_max_op_c=87.0 - (66 + i), margin_to_slowdown_c=89.0 - (66 + i))
            for i, u in enumerate(gpus)
        },
    )
    return View(
        node_name="gpu-node-07",
        now_s=NOW_S,
        wall_s=WALL_S,
        started_s=NOW_S - 36_000,
        version="0.1.0",
        snapshot=NodeSnapshot(
            taken_at_s=NOW_S,
            gpus=gpus,
            pdus={"rack12-a": pdu},
            outlets={"rack12-a": Reading(5310.0, NOW_S - 3.1)},
            host=a_host(NOW_S),
            jobs=(job,),
            sources=sources,
            helper=HelperStatus(state="ok", driver="ok", can_write=True, pid=812, uid=0),
        ),
        limits=limits_of(count),
        setpoints=setpoints,
        armed=True,
        armed_since_s=NOW_S - 30_000,
        loops={"control": LoopHealth(progress_s=NOW_S - 0.2, period_s=1.0)},
        expected_gpus=8,
        config_path="/etc/nodewarden/nodewarden.toml",
        http_listen="0.0.0.0:10048",
    )


def hot() -> View:
    """GPU 5 is hot: capped, its job slowed; GPU 2 is lost; the PDU of feed B does not answer."""
    view = calm()
    uuid, lost = uuid_of(5), uuid_of(2)
    caps = view.setpoints.caps | {
        uuid: CapSetpoint(
            w=540,
            cause=Cause.THERMAL,
            protects=Protects.GPU,
            keep_w=540,
            lifts_when="margin > 4 degC for 60 s",
        )
    }
    forecast = view.setpoints.forecast | {
        uuid: Forecast(margin_to_max_op_c=3, margin_to_slowdown_c=5, time_to_slowdown_s=48)
    }
    hot_gpu = gpu(5, junction_c=84, power_w=523.1, cap_w=540, hbm_c=Reading(86.0, NOW_S - 0.4))
    hot_gpu = msgspec.structs.replace(hot_gpu, slow=Reading(("sw_thermal",), NOW_S - 0.4))
    gone = GpuSnapshot(
        uuid=lost, index=2, model="NVIDIA H100 80GB HBM3", health="lost", health_since_s=NOW_S - 3_661,
        junction_c=Failed("lost", NOW_S - 3_661), power_w=Failed("lost", NOW_S - 3_661),
    )  # fmt: skip
    pdu_b = PduSnapshot(name="rack12-b", feed="B", up=False, since_s=NOW_S - 95, reason="timeout")
    job = msgspec.structs.replace(view.snapshot.jobs[0], state="throttled", duty=0.85)
    silent = SourceStatus(name=f"gpu/{lost}", last_success_s=NOW_S - 3_661, reason="lost")
    snapshot = msgspec.structs.replace(
        view.snapshot,
        sources=view.snapshot.sources | {silent.name: silent},
        gpus=view.snapshot.gpus | {uuid: hot_gpu, lost: gone},
        pdus=view.snapshot.pdus | {"rack12-b": pdu_b},
        jobs=(job,),
    )
    problems = (
        Problem(
            code="gpu_lost",
            severity="critical",
            text=f"GPU 2 ({lost}) fell off the bus since 10:58:59; looked for again; it needs a reset or a reboot",
            since_s=NOW_S - 3_661,
            uuid=lost,
        ),
        Problem(
            code="gpu_capped",
            severity="warning",
            text="GPU 5 capped at 540 W: cooling removes less heat since 11:58:20; lifts when margin > 4 degC for 60 s",
            since_s=NOW_S - 100,
            uuid=uuid,
        ),
        Problem(
            code="pdu_stale",
            severity="warning",
            text="PDU rack12-b not read (timeout) since 11:58:25",
            since_s=NOW_S - 95,
            pdu="rack12-b",
        ),
    )
    return msgspec.structs.replace(
        view,
        snapshot=snapshot,
        setpoints=msgspec.structs.replace(view.setpoints, caps=caps, forecast=forecast, level=Level.THROTTLE),
        health="critical",
        problems=problems,
        ledger=(
            LedgerEntry(
                uuid=uuid,
                prior_w=PRIOR_W,
                w=540,
                keep_w=540,
                protects="gpu",
                cause="thermal",
                since_s=NOW_S - 100,
                written_at_s=NOW_S - 12,
            ),
        ),
        caps_since={uuid: NOW_S - 100},
    )


def degraded() -> View:
    """Only the hot GPU of `hot()`: one cap in force, nothing lost."""
    view = hot()
    whole = calm().snapshot.gpus[uuid_of(2)]
    return msgspec.structs.replace(
        view,
        snapshot=msgspec.structs.replace(
            view.snapshot,
            gpus=view.snapshot.gpus | {whole.uuid: whole},
            pdus={"rack12-a": view.snapshot.pdus["rack12-a"]},
        ),
        health="degraded",
        problems=(view.problems[1],),
    )


def blind() -> View:
    """No driver, no PDU, no job: disarmed and just started."""
    return View(
        node_name="gpu-node-07",
        now_s=NOW_S,
        wall_s=WALL_S,
        started_s=NOW_S - 1,
        version="0.1.0",
        snapshot=NodeSnapshot(taken_at_s=NOW_S, helper=HelperStatus(state="ok", driver="library_not_found")),
        problems=(
            Problem(
                code="disarmed",
                severity="info",
                text="disarmed: no automatic caps or job requests since 11:59:59",
                since_s=NOW_S - 1,
            ),
        ),
    )
