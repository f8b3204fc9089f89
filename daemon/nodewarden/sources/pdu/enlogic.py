"""Enlogic PDUs and the APC NetShelter ones that are built by them: one layout under two roots.

Indices are unit.phase, unit.breaker, unit.outlet. Chained units are rows of `units`; their outlets each count from 1.
"""

from nodewarden.sources.pdu.profile import Guard, Profile, Table, name, number, state, text

_LOAD = {1: "upperCritical", 2: "upperWarning", 3: "lowerWarning", 4: "lowerCritical", 5: "normal"}
_OFF_ON = {0: "off", 1: "on"}


def _profile(profile: str, vendor: str, root: str, prefixes: tuple[str, ...]) -> Profile:
    unit, phase, breaker = f"{root}.2.4.1", f"{root}.3.4.1", f"{root}.4.4.1"
    metered, switched, plate = f"{root}.5.9.1", f"{root}.5.4.1", f"{root}.1.2.1"
    return Profile(
        name=profile,
        vendor=vendor,
        prefixes=prefixes,
        probe=(f"{unit}.4.1",),
        # NetShelter keeps its rating where the MIB has the model, and its model where the MIB has the part number
        scalars={"model": (text(f"{plate}.11", "1"), text(f"{plate}.10", "1"))},
        tables=(
            Table(
                rows="units",
                keys=(f"{unit}.4",),
                fields={
                    "total_power_w": (number(f"{unit}.4", poll="fast", rank=10),),
                    "apparent_power_va": (number(f"{unit}.5", poll="fast", rank=40),),
                    "energy_wh": (number(f"{unit}.9", 100, poll="fast", rank=42),),
                    "power_factor": (number(f"{unit}.13", 0.01, poll="fast", rank=41),),
                },
            ),
            Table(
                rows="phases",
                keys=(f"{phase}.5", f"{phase}.7"),
                id="L{number}",
                fields={
                    "voltage_v": (number(f"{phase}.6", poll="fast", rank=30),),
                    "current_a": (number(f"{phase}.5", 0.01, poll="fast", rank=21),),
                    "power_w": (number(f"{phase}.7", poll="fast", rank=20),),
                    "apparent_va": (number(f"{phase}.8"),),
                    "power_factor": (number(f"{phase}.9", 0.01),),
                    "load_state": (state(f"{phase}.4", _LOAD),),
                },
            ),
            Table(
                rows="banks",
                keys=(f"{breaker}.5",),
                id="B{number}",
                where=Guard(
                    f"{breaker}.2", frozenset({0}), deny=True, missing=False
                ),  # rows that only fill up the table
                fields={"current_a": (number(f"{breaker}.5", 0.01, poll="fast", rank=50),)},
            ),
            Table(
                rows="outlets",
                keys=(f"{metered}.6",),
                fields={
                    "name": (name(f"{metered}.3"),),
                    "current_a": (number(f"{metered}.5", 0.01),),
                    "power_w": (number(f"{metered}.6"),),
                    "power_factor": (number(f"{metered}.7", 0.01),),
                    "energy_wh": (number(f"{metered}.11", 100),),
                },
            ),
            Table(
                rows="outlets",
                keys=(f"{switched}.4",),
                fields={"name": (name(f"{switched}.3"),), "state": (state(f"{switched}.4", _OFF_ON),)},
            ),
        ),
    )


NETSHELTER = _profile("apc-netshelter-cpdu", "APC", "1.3.6.1.4.1.318.1.1.32", ("1.3.6.1.4.1.318.1.1.32.1",))
ENLOGIC = _profile("enlogic", "Enlogic", "1.3.6.1.4.1.38446.1", ("1.3.6.1.4.1.38446",))
