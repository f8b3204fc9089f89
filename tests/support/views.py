"""A whole node as readers see it: eight H100, a PDU with 24 outlets, one job, one cap; made anew for any moment."""

from nodewarden.api.view import LoopHealth, View
from nodewarden.gpuhelper.wire import LedgerEntry
from nodewarden.model.limits import GpuLimits, Limits
from nodewarden.model.readings import Absent, Reading
from nodewarden.model.setpoints import CapSetpoint, Cause, JobSetpoint, Level, Protects, Setpoints
from nodewarden.model.snapshot import (
    SLOW_REASONS,
    BankSnapshot,
    GpuBoard,
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
from nodewarden.model.workload import GpuJob, GpuProcess, Workload
from nodewarden.model.xids import GpuXids, Incident, SwitchErrors
from nodewarden.xid_table import load_table
from nodewarden_alerts import Problem
from support.bmc_values import a_bmc
from support.gpu_values import some_values
from support.host_values import a_host

NOW_S = 10_000.0
WALL_S = 1_796_040_000.0  # 2026-11-30 12:00:00 UTC


def gpu_uuid(index: int) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def a_gpu(index: int, now_s: float = NOW_S, links: tuple[LinkState, ...] | None = None) -> GpuSnapshot:
    """A GPU under load; values differ by index, and a little with time."""
    at_s = now_s - 0.25

    def reading(value: float) -> Reading[float]:
        return Reading(value, at_s)

    step = int(now_s) % 7
    return GpuSnapshot(
        uuid=gpu_uuid(index),
        index=index,
        model="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        health_since_s=1.0,
        board=GpuBoard(
            min_w=200.0, max_w=700.0, default_w=700.0, kind="tlimit", max_op_c=0, slowdown_c=-2, shutdown_c=-8
        ),
        junction_c=reading(70.0 + index),
        hbm_c=reading(74.0 + index),
        margin_c=reading(15.0 - index),
        power_w=reading(640.125 + index + step),
        power_instant_w=reading(651.5 + index),
        energy_j=reading(123_456_789.5 + 640.0 * now_s),
        cap_w=reading(700.0 if index != 5 else 540.0),
        enforced_w=reading(700.0 if index != 5 else 540.0),
        utilisation=reading(0.99),
        memory_used_bytes=reading(70e9),
        memory_total_bytes=reading(85_899_345_920),
        sm_clock_hz=reading(1.755e9),
        memory_clock_hz=reading(2.619e9),
        slow=Reading(("sw_power_cap",) if index != 5 else ("sw_power_cap", "sw_thermal"), at_s),
        slow_s={reason: reading(float(index)) for reason in SLOW_REASONS},
        links=some_links(now_s) if links is None else links,
        links_taken_at_s=now_s - 4.0,
        pids=Reading((4000 + index,), at_s),
        more=some_values(now_s - 4.0),
    )


def some_links(now_s: float) -> tuple[LinkState, ...]:
    return tuple(LinkState(link, True, 1e12 + now_s * 1e9 + link, 2e12 + now_s * 1e9 + link) for link in range(18))


def a_pdu(now_s: float = NOW_S, outlets: int = 24) -> PduSnapshot:
    at_s = now_s - 3.0
    return PduSnapshot(
        name="rack12-a",
        feed="A",
        vendor="APC",
        model="AP8659",
        profile="apc-rpdu2",
        up=True,
        since_s=1.0,
        limit_w=6000.0,
        mapped_outlets=(7, 8),
        power_w=Reading(9810.0, at_s),
        apparent_va=Reading(9990.0, at_s),
        power_factor=Reading(0.98, at_s),
        energy_wh=Reading(1_234_500.0, at_s),
        outlets_w=Reading(5810.0, at_s),
        phases=tuple(
            PhaseSnapshot(id=f"L{n}", voltage_v=230.0 + n, current_a=14.0 + n, power_w=3270.0, energy_wh=400_000.0 + n)
            for n in (1, 2, 3)
        ),
        banks=tuple(BankSnapshot(id=str(n), current_a=7.5 + n, load_state="normal") for n in range(1, 7)),
        outlets=tuple(
            OutletSnapshot(
                index=n, name=f"node {n}", current_a=1.5, power_w=340.0 + n, energy_wh=5000.0 + n, state="on"
            )
            for n in range(1, outlets + 1)
        ),
    )


def a_job(name: str = "slurm-4711", now_s: float = NOW_S) -> JobSnapshot:
    return JobSnapshot(
        id=name,
        gpus=tuple(gpu_uuid(n) for n in range(8)),
        ranks=8,
        world=8,
        framework="torch",
        step=18_230,
        steps_per_s=0.5,
        ckpt_s=12.0,
        state="throttled",
        duty=0.85,
        last_checkpoint_at_s=now_s - 812.0,
    )


def some_work(now_s: float = NOW_S) -> Workload:
    """The connected job and a pod that the kubelet names."""
    return Workload(
        now_s,
        processes=(GpuProcess(4243, 100.0, "python"),),
        jobs=(
            GpuJob(id="slurm-4711", source="client"),
            GpuJob(id="ml/infer-0", source="kubernetes", namespace="ml", pod="infer-0", container="main"),
        ),
    )


def sources(now_s: float = NOW_S, gpus: int = 8) -> dict[str, SourceStatus]:
    made = [
        SourceStatus(name=f"gpu/{gpu_uuid(n)}", up=True, last_success_s=now_s - 0.25, duration_s=0.011)
        for n in range(gpus)
    ]
    made += [
        SourceStatus(
            name=f"gpu_slow/{gpu_uuid(n)}", up=True, last_success_s=now_s - 4.0, duration_s=0.05, stale_after_s=30.0
        )
        for n in range(gpus)
    ]
    made.append(
        SourceStatus(
            name="pdu/rack12-a",
            up=True,
            last_success_s=now_s - 3.0,
            duration_s=0.12,
            stale_after_s=15.0,
            errors={"timeout": 3},
            rejected={"outlets.3.power_w": 2},
        )
    )
    return {source.name: source for source in made}


def some_xids(now_s: float) -> GpuXids:
    """Two page faults, the last ten seconds ago."""
    fault = Incident(
        code=31, row=load_table().row(31), count=2, first_s=now_s - 70, last_s=now_s - 10, over_s=now_s + 590
    )
    return GpuXids(
        total=2, by_code={"31": 2}, by_source={"nvml": 2, "kernel": 2}, last_s=now_s - 10, incidents=(fault,)
    )


def a_view(now_s: float = NOW_S, *, gpus: int = 8, pdu: PduSnapshot | None = None) -> View:
    """The node at a moment; hand in the PDU of an earlier view where it has not been polled since."""
    pdu = pdu or a_pdu(now_s)
    capped = gpu_uuid(5)
    limits = Limits(
        gpus={
            gpu_uuid(n): GpuLimits(
                min_w=200, max_w=700, prior_w=700, kind="tlimit", max_op_c=0.0, slowdown_c=-2.0, shutdown_c=-8.0
            )
            for n in range(gpus)
        },
        node_power_w=5200.0,
        outlets={"rack12-a": 6000.0},
    )
    return View(
        node_name="gpu-node-07",
        now_s=now_s,
        wall_s=WALL_S + now_s - NOW_S,
        started_s=100.0,
        version="0.1.0",
        snapshot=NodeSnapshot(
            taken_at_s=now_s,
            gpus={gpu_uuid(n): a_gpu(n, now_s) for n in range(gpus)},
            pdus={pdu.name: pdu},
            outlets={pdu.name: pdu.outlets_w},
            host=a_host(now_s),
            bmc=a_bmc(now_s),
            jobs=(a_job(now_s=now_s),),
            workloads={gpu_uuid(5): some_work(now_s)},
            xids={gpu_uuid(5): some_xids(now_s)},
            switches={"0000:c1:00.0": SwitchErrors(by_code={"28006": 2}, last_code=28006, last_s=now_s - 7200.0)},
            sources=sources(now_s, gpus),
            helper=HelperStatus(state="ok", since_s=1.0, driver="ok", can_write=True, pid=700, uid=0),
        ),
        limits=limits,
        setpoints=Setpoints(
            caps={capped: CapSetpoint(w=540.0, cause=Cause.THERMAL, protects=Protects.GPU, keep_w=540.0)},
            job=JobSetpoint(duty=0.85, cause=Cause.THERMAL, gpu=capped),
            level=Level.THROTTLE,
        ),
        armed=True,
        armed_since_s=200.0,
        health="degraded",
        problems=(
            Problem(code="gpu_capped", severity="warning", text="GPU 5 capped at 540 W", since_s=9_900.0, uuid=capped),
        ),
        ledger=(LedgerEntry(uuid=capped, prior_w=700.0, w=540.0, keep_w=540.0, protects="gpu", cause="thermal"),),
        caps_since={capped: 9_900.0},
        loops={
            "gpu_fast": LoopHealth(progress_s=now_s - 0.25, period_s=1.0),
            "pdu/rack12-a": LoopHealth(progress_s=now_s - 3.0, period_s=5.0, critical=False),
        },
        expected_gpus=8,
    )


NOTHING = Absent("not_supported")
