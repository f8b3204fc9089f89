"""A hand that plays readings to the policy second by second, for tests that say each value themselves."""

from typing import Any

from nodewarden.model.setpoints import CapSetpoint, Setpoints
from nodewarden.policy import decide, initial_state, limits_from, snapshot_from
from policy.loop import UUIDS

CALM = {"junction_c": 65, "hbm_c": 69, "power_w": 640.0, "cap_w": 700.0, "utilisation": 0.99}
SILENT = {"failed": "timeout"}
ABSENT = {"absent": True}


class Hand:
    """`gpus` boards with absolute thresholds 87/89/92; every reading is `CALM` unless said otherwise.

    A value may be a number, or a whole quantity such as `SILENT` or `ABSENT`. `caps_follow`: the cap that is read is
    the one of the decision before, as on a node whose caps are applied.
    """

    def __init__(self, gpus: int = 1, *, caps_follow: bool = False, gpu_limits: Any = None, **limits: Any) -> None:
        self.uuids = UUIDS[:gpus]
        self.plain: dict[str, Any] = {
            "gpus": {
                uuid: {
                    "min_w": 200, "max_w": 700, "prior_w": 700, "kind": "absolute", "max_op_c": 87, "slowdown_c": 89,
                    "shutdown_c": 92, "hbm_max_op_c": 95, **(gpu_limits or {}),
                }
                for uuid in self.uuids
            },
            **limits,
        }  # fmt: skip
        self.caps_follow = caps_follow
        self.now_s = 1000.0
        self.state = initial_state(limits_from(self.plain))
        self.events: list[str] = []
        self.texts: list[str] = []
        self.last: Setpoints | None = None
        self.spoke: dict[str, dict[str, Any]] = {}

    def play(
        self, seconds: int = 1, *, per: dict[int, dict[str, Any]] | None = None, jobs: Any = (), outlets: Any = None,
        silent: bool = False, step_s: float = 1.0, **readings: Any,
    ) -> Setpoints:  # fmt: skip
        """Decide `seconds` times. `per` overrides readings of one GPU; `silent`: nothing new is read at all."""
        for _ in range(seconds):
            self.now_s += step_s
            if not silent:
                for index, uuid in enumerate(self.uuids):
                    mine: dict[str, Any] = {**CALM, **readings, **(per or {}).get(index, {})}
                    if self.caps_follow and self.last is not None and "cap_w" not in readings:
                        mine["cap_w"] = self.last.caps[uuid].w
                    self.spoke[uuid] = {field: self._quantity(value) for field, value in mine.items()}
            snapshot = snapshot_from(
                {
                    "gpus": self.spoke,
                    "outlets": {name: self._quantity(value) for name, value in (outlets or {}).items()},
                    "jobs": list(jobs),
                }
            )
            self.state, self.last, events = decide(self.state, snapshot, limits_from(self.plain), self.now_s)
            self.events += [event.code for event in events]
            self.texts += [event.text for event in events]
        assert self.last is not None
        return self.last

    def cap(self, index: int = 0) -> CapSetpoint:
        """The newest setpoint of one GPU."""
        assert self.last is not None
        return self.last.caps[self.uuids[index]]

    def _quantity(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {"t_s": self.now_s, **value} if "failed" in value or "v" in value else value
        if isinstance(value, list | tuple):
            return {"v": list(value), "t_s": self.now_s}
        return {"v": value, "t_s": self.now_s}
