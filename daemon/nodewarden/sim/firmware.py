"""What the board does by itself when it gets too hot: SW thermal slowdown, HW slowdown, power-off.

The last line of defence in reality as here; the agent's claim is that it is not needed.
"""

from typing import Literal

from nodewarden.sim.boards import H100, BoardModel

SwThermal = Literal["ideal", "coarse", "none"]

SLOWDOWN_ENDS_BELOW_C = 3.0
COARSE_ENDS_BELOW_C = 5.0
COARSE_FACTOR = 0.6
IDEAL_STEP_PER_S = 0.1  # one percent of the clock every 0.1 s, down while too hot and up again below
MIN_FACTOR = 0.2
HBM_SPEED_FACTOR = 0.75  # hot memory loses bandwidth without telling anyone


class Firmware:
    """Protection of one board.

    Attributes:
        sw_factor: what SW thermal leaves of the clock, 1 = all.
        sw_active, hw_active: the event reasons that the board reports.
        off: it switched itself off, and stays off until a reset.
    """

    __slots__ = ("board", "enabled", "hw_active", "hw_seconds", "off", "sw", "sw_active", "sw_factor")

    def __init__(self, sw: SwThermal = "ideal", *, enabled: bool = True, board: BoardModel = H100) -> None:
        self.board = board
        self.sw = sw
        self.enabled = enabled
        self.sw_factor = 1.0
        self.sw_active = False
        self.hw_active = False
        self.hw_seconds = 0.0
        self.off = False

    def step(self, dt_s: float, junction_c: float, hbm_c: float) -> float:
        """Advance by `dt_s`; the factor on the clock, 0 when the board is off."""
        if not self.enabled:
            return 1.0
        board = self.board
        if self.off or junction_c >= board.shutdown_c:
            self.off = True
            return 0.0
        if junction_c >= board.slowdown_c:
            self.hw_active = True
        elif junction_c < board.slowdown_c - SLOWDOWN_ENDS_BELOW_C:
            self.hw_active = False
        if self.hw_active:
            self.hw_seconds += dt_s
        too_hot = junction_c >= board.max_op_c or hbm_c >= board.hbm_max_op_c
        if self.sw == "ideal":
            change = IDEAL_STEP_PER_S * dt_s
            self.sw_factor = max(MIN_FACTOR, self.sw_factor - change) if too_hot else min(1.0, self.sw_factor + change)
            self.sw_active = self.sw_factor < 1.0
        elif self.sw == "coarse":
            if too_hot:
                self.sw_active = True
            elif junction_c < board.max_op_c - COARSE_ENDS_BELOW_C:
                self.sw_active = False
            self.sw_factor = COARSE_FACTOR if self.sw_active else 1.0
        return self.sw_factor * (0.5 if self.hw_active else 1.0)
