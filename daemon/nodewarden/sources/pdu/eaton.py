"""Eaton ePDU G2 and G3 (EATON-EPDU-MIB). Indices are strip.input.line and strip.outlet; strips count from 0.

Power factors are negative for leading loads in real units, although the MIB says that negative is "not available".
"""

from nodewarden.sources.pdu.profile import Guard, Profile, Table, name, number, state, text

_ROOT = "1.3.6.1.4.1.534.6.6.7"
_FREQUENCY, _VOLTAGE, _CURRENT, _POWER, _TOTAL = (f"{_ROOT}.3.{table}.1" for table in (1, 2, 3, 4, 5))
_GROUP, _OUTLET, _PROBES = f"{_ROOT}.5", f"{_ROOT}.6", f"{_ROOT}.7"
_NEUTRAL, _SUM, _BETWEEN_LINES = frozenset({2}), frozenset({4}), frozenset({5, 6, 7})
_CONNECTED = frozenset({1})

EPDU = Profile(
    name="eaton-epdu-g3",
    vendor="Eaton",
    prefixes=(_ROOT,),
    probe=(f"{_TOTAL}.4.0.1", f"{_CURRENT}.4.0.1.1"),
    scalars={"model": (text(f"{_ROOT}.1.2.1.3", "0"),)},
    tables=(
        Table(
            rows="units",
            keys=(f"{_TOTAL}.4",),
            id="strip.input {index}",
            fields={
                "total_power_w": (number(f"{_TOTAL}.4", poll="fast", rank=10),),
                "apparent_power_va": (number(f"{_TOTAL}.3", poll="fast", rank=40),),
                "energy_wh": (number(f"{_TOTAL}.5", poll="fast", rank=42),),
                "power_factor": (number(f"{_TOTAL}.7", 0.001, signed=True, poll="fast", rank=41),),
                "frequency_hz": (number(f"{_FREQUENCY}.3", 0.1, poll="fast", rank=60),),
            },
        ),
        Table(
            rows="phases",
            keys=(f"{_CURRENT}.4",),
            id="L{number}",
            where=Guard(f"{_CURRENT}.2", _NEUTRAL, deny=True),
            fields={
                "voltage_v": (
                    number(
                        f"{_VOLTAGE}.3",
                        0.001,
                        guard=Guard(f"{_VOLTAGE}.2", _BETWEEN_LINES, deny=True),
                        poll="fast",
                        rank=30,
                    ),
                ),
                "current_a": (number(f"{_CURRENT}.4", 0.001, poll="fast", rank=21),),
                "power_w": (number(f"{_POWER}.4", guard=Guard(f"{_POWER}.2", _SUM, deny=True), poll="fast", rank=20),),
                "apparent_va": (number(f"{_POWER}.3", guard=Guard(f"{_POWER}.2", _SUM, deny=True)),),
                "energy_wh": (number(f"{_POWER}.5", guard=Guard(f"{_POWER}.2", _SUM, deny=True)),),
            },
        ),
        Table(
            rows="banks",
            keys=(f"{_GROUP}.5.1.3", f"{_GROUP}.4.1.3"),
            id="group {index}",
            fields={
                "voltage_v": (number(f"{_GROUP}.3.1.3", 0.001),),
                "current_a": (number(f"{_GROUP}.4.1.3", 0.001),),
                "power_w": (number(f"{_GROUP}.5.1.3"),),
                "apparent_va": (number(f"{_GROUP}.5.1.2"),),
                "energy_wh": (number(f"{_GROUP}.5.1.4"),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_OUTLET}.1.1.3", f"{_OUTLET}.5.1.3"),
            fields={
                "name": (name(f"{_OUTLET}.1.1.3"),),
                "current_a": (number(f"{_OUTLET}.4.1.3", 0.001),),
                "power_w": (number(f"{_OUTLET}.5.1.3"),),
                "apparent_va": (number(f"{_OUTLET}.5.1.2"),),
                "energy_wh": (number(f"{_OUTLET}.5.1.4"),),
                "state": (state(f"{_OUTLET}.6.1.2", {0: "off", 1: "on"}),),
            },
        ),
        Table(
            rows="inlet_temps_c",
            keys=(f"{_PROBES}.1.1.4",),
            where=Guard(f"{_PROBES}.1.1.3", _CONNECTED),
            fields={"value": (number(f"{_PROBES}.1.1.4", 0.1, fahrenheit=(f"{_ROOT}.1.2.1.9", 1)),)},
        ),
        Table(
            rows="humidity_pct",
            keys=(f"{_PROBES}.2.1.4",),
            where=Guard(f"{_PROBES}.2.1.3", _CONNECTED),
            fields={"value": (number(f"{_PROBES}.2.1.4", 0.1),)},
        ),
    ),
)
