"""Scripted hours: which plant, what goes wrong and when, and the words for it. A TOML file each in `scenarios/`."""

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from nodewarden.errors import ConfigError
from nodewarden.sim.cooling import LANES, Fault
from nodewarden.sim.firmware import SwThermal
from nodewarden.sim.job_model import JobModel
from nodewarden.sim.plant import DT_S, Plant

SETTLE_S = 300.0


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person at the machine would say at `at_s` scenario seconds."""

    at_s: float
    text: str


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted stretch of time.

    Attributes:
        title: one line, without a full stop.
        plant: how the node is cooled.
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
    duration_s: float
    sw_thermal: SwThermal = "ideal"
    warm: bool = True
    pdu_limit_w: float = 9000.0
    save_s: float = 8.0
    save_every_steps: int = 0
    fault: tuple[Fault, ...] = ()
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
            if fault.kind != "hot_aisle" and fault.value is not None and not 0.0 < fault.value <= 1.0:
                found.append(f"{where}: value {fault.value:g} is no share of the flow: above 0, at most 1")
            if bad := [lane for lane in fault.lanes if not 0 <= lane < LANES]:
                found.append(f"{where}: lanes {bad} do not exist: 0 to {LANES - 1}")
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
    plant = Plant(scenario.plant, seed=seed, sw_thermal=scenario.sw_thermal)
    if scenario.warm:
        job = JobModel(plant)
        while plant.now_s < SETTLE_S:
            job.step(DT_S)
            plant.step(DT_S)
    plant.begin(scenario.fault)
    return plant
