"""Scripted hours: which plant, what goes wrong and when, and the words for it. A TOML file each in `scenarios/`."""

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from nodewarden.errors import ConfigError
from nodewarden.sim.boards import BoardName
from nodewarden.sim.cooling import LANES, RESISTANCE_KINDS, Fault
from nodewarden.sim.firmware import SwThermal
from nodewarden.sim.job_model import JobModel
from nodewarden.sim.lies import Lie
from nodewarden.sim.plant import DT_S, GPUS, Plant

SETTLE_S = 300.0


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person at the machine would say at `at_s` scenario seconds."""

    at_s: float
    text: str


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted stretch of time.

    Attributes:
        title: one line, without a full stop.
        plant: how the node is cooled. board: which GPUs.
        r_factor, r_ds_factor, c_factor, meter_error: how this node differs from the nominal one.
        lie: temperature sensors that do not tell the truth.
        duration_s: how long it runs, repairs and recovery included.
        sw_thermal: how good the driver's own thermal loop is.
        warm: True = training has run for long when it starts; False = the node comes from idle.
        pdu_limit_w: what this node's outlets may draw together.
        save_s: seconds that a checkpoint takes.
        save_every_steps: the training script's own checkpoint interval, 0 = only when asked.
        fault, told: what happens and the words for it, in scenario seconds.
    """

    title: str
    plant: Literal["air", "liquid"] = "air"
    board: BoardName = "h100"
    r_factor: float = 1.0
    r_ds_factor: float = 1.0
    c_factor: float = 1.0
    meter_error: float = 0.0
    duration_s: float
    sw_thermal: SwThermal = "ideal"
    warm: bool = True
    pdu_limit_w: float = 9000.0
    save_s: float = 8.0
    save_every_steps: int = 0
    fault: tuple[Fault, ...] = ()
    lie: tuple[Lie, ...] = ()
    told: tuple[Told, ...] = ()

    def problems(self) -> list[str]:
        """Mistakes that the types do not catch, one readable line each."""
        found = []
        if self.duration_s <= 0:
            found.append(f"duration_s: {self.duration_s:g} is not allowed: give seconds above 0")
        for i, fault in enumerate(self.fault):
            where = f"fault[{i}] ({fault.kind})"
            if not 0.0 <= fault.at_s < self.duration_s:
                found.append(f"{where}: at_s {fault.at_s:g} is outside the scenario: 0 to {self.duration_s:g} s")
            if fault.until_s is not None and fault.until_s <= fault.at_s:
                found.append(f"{where}: until_s {fault.until_s:g} must be after at_s {fault.at_s:g}")
            if fault.kind in RESISTANCE_KINDS:
                if fault.value is not None and not 1.0 <= fault.value <= 10.0:
                    found.append(f"{where}: value {fault.value:g} is no factor on the thermal resistance: 1 to 10")
                if not 0 <= fault.gpu < GPUS:
                    found.append(f"{where}: gpu {fault.gpu} does not exist: 0 to {GPUS - 1}")
            elif fault.kind != "hot_aisle" and fault.value is not None and not 0.0 < fault.value <= 1.0:
                found.append(f"{where}: value {fault.value:g} is no share of the flow: above 0, at most 1")
            if bad := [lane for lane in fault.lanes if not 0 <= lane < LANES]:
                found.append(f"{where}: lanes {bad} do not exist: 0 to {LANES - 1}")
        for i, lie in enumerate(self.lie):
            if bad := [gpu for gpu in (lie.gpu, lie.other) if not 0 <= gpu < GPUS]:
                found.append(f"lie[{i}] ({lie.kind}): gpu {bad} does not exist: 0 to {GPUS - 1}")
        found += [
            f"{name}: {value:g} is not allowed: 0.2 to 5"
            for name, value in (
                ("r_factor", self.r_factor),
                ("r_ds_factor", self.r_ds_factor),
                ("c_factor", self.c_factor),
            )
            if not 0.2 <= value <= 5.0
        ]
        if not 0.0 <= self.meter_error <= 0.2:
            found.append(f"meter_error: {self.meter_error:g} is not allowed: 0 to 0.2 (a share of the reading)")
        return found


def scenario_names() -> list[str]:
    """Names of the scenarios that come with the twin."""
    folder = resources.files("nodewarden.sim") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_scenario(name: str) -> Scenario:
    """The scenario of this name, or of this TOML file.

    Raises:
        ConfigError: no such scenario, or all the mistakes in it.
    """
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError([f"{name}: cannot be read: {error.strerror}"]) from error
    elif name in scenario_names():
        text = (resources.files("nodewarden.sim") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise ConfigError(
            [f"no scenario is called {name!r}: there are {', '.join(scenario_names())}, or give a .toml file"]
        )
    try:
        scenario = msgspec.toml.decode(text, type=Scenario)
    except msgspec.DecodeError as error:
        raise ConfigError([f"{name}: {error}"]) from error
    if problems := scenario.problems():
        raise ConfigError([f"{name}: {problem}" for problem in problems])
    return scenario


def plant_for(scenario: Scenario, seed: int = 1) -> Plant:
    """The scenario's plant at its second 0: settled under training where the scenario says so."""
    return settled(scenario, seed)[0]


def settled(scenario: Scenario, seed: int = 1) -> tuple[Plant, float | None]:
    """The same, and the steps per second of the healthy node; None where nothing was trained yet."""
    plant = Plant(
        scenario.plant,
        seed=seed,
        sw_thermal=scenario.sw_thermal,
        board=scenario.board,
        r_factor=scenario.r_factor,
        r_ds_factor=scenario.r_ds_factor,
        c_factor=scenario.c_factor,
        meter_error=scenario.meter_error,
        lies=scenario.lie,
    )
    steps_per_s = None
    if scenario.warm:
        job = JobModel(plant)
        then_s, then = 0.0, 0
        while plant.now_s < SETTLE_S:
            job.step(DT_S)
            plant.step(DT_S)
            if job.steps != then and (then_s == 0.0 or plant.now_s < SETTLE_S / 2):
                then_s, then = job.step_ended_s, job.steps
        steps_per_s = (job.steps - then) / (job.step_ended_s - then_s)
    plant.begin(scenario.fault)
    return plant, steps_per_s
