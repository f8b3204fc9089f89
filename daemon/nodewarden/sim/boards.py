"""The boards that the twin knows: limits, power and clocks of one model each."""

from typing import Final, Literal

import msgspec

from nodewarden.model.snapshot import GpuBoard

BoardName = Literal["h100", "a100"]


class BoardModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of GPU. Degrees Celsius, watts.

    Attributes:
        kind: "tlimit": it tells a signed margin; "absolute": it tells thresholds in degC.
        dynamic_w: what the chip would draw above idle at full clock and full activity; the cap never lets it.
        idle_w, leak_w: what it draws without work: idle_w + leak_w * e^((T - 70) / 40).
        hbm_idle_w, hbm_work_w: of that, in the memory: without work, and on top of it at full activity.
        r_scale: thermal resistance of its cooler against the H100's (assumed: a smaller sink for a smaller board).
    """

    name: str
    kind: Literal["tlimit", "absolute"]
    min_w: float
    max_w: float
    max_sm_hz: float
    max_op_c: float
    slowdown_c: float
    shutdown_c: float
    hbm_max_op_c: float
    dynamic_w: float
    idle_w: float
    leak_w: float
    hbm_idle_w: float
    hbm_work_w: float
    r_scale: float

    @property
    def told(self) -> GpuBoard:
        """What the board says of its own limits: offsets to T.Limit 0 as driver 590 gives them, or thresholds."""
        margin = self.kind == "tlimit"
        return GpuBoard(
            min_w=self.min_w,
            max_w=self.max_w,
            default_w=self.max_w,
            kind=self.kind,
            max_op_c=0.0 if margin else self.max_op_c,
            slowdown_c=self.max_op_c - self.slowdown_c if margin else self.slowdown_c,
            shutdown_c=self.max_op_c - self.shutdown_c if margin else self.shutdown_c,
            # T.Limit already is the margin of whatever is nearest to its limit, HBM included.
            hbm_max_op_c=None if margin else self.hbm_max_op_c,
        )


H100: Final = BoardModel(
    name="NVIDIA H100 80GB HBM3",
    kind="tlimit",
    min_w=200.0,
    max_w=700.0,
    max_sm_hz=1980e6,
    max_op_c=87.0,
    slowdown_c=89.0,
    shutdown_c=95.0,
    hbm_max_op_c=95.0,
    dynamic_w=850.0,
    idle_w=70.0,
    leak_w=30.0,
    hbm_idle_w=45.0,
    hbm_work_w=55.0,
    r_scale=1.0,
)
A100: Final = BoardModel(
    name="NVIDIA A100-SXM4-80GB",
    kind="absolute",
    min_w=100.0,
    max_w=400.0,
    max_sm_hz=1410e6,
    max_op_c=85.0,
    slowdown_c=89.0,
    shutdown_c=92.0,
    hbm_max_op_c=95.0,
    dynamic_w=480.0,
    idle_w=45.0,
    leak_w=15.0,
    hbm_idle_w=30.0,
    hbm_work_w=35.0,
    r_scale=1.55,
)
BOARDS: Final[dict[BoardName, BoardModel]] = {"h100": H100, "a100": A100}
