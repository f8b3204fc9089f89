"""Raritan PX2 and newer (PDU2-MIB), where each value is a sensor whose index ends in its type; and PX1 (PDU-MIB).

The number of decimal digits is told by the device for each sensor and differs between models. Sensor types: 1 current,
4 voltage, 5 active power, 6 apparent power, 7 power factor, 8 energy, 10 temperature, 11 humidity, 14 on/off,
23 frequency, 25 voltage to neutral.
"""

from nodewarden.sources.pdu.profile import SYS_DESCR, Field, Guard, Profile, Table, name, number, text

_ROOT = "1.3.6.1.4.1.13742.6"
_INLET, _POLE, _BREAKER, _OUTLET, _EXTERNAL = (
    f"{_ROOT}.5.{branch}.1" for branch in ("2.3", "2.4", "3.3", "4.3", "5.3")
)
_INLET_SETUP, _POLE_SETUP, _BREAKER_SETUP, _OUTLET_SETUP, _EXTERNAL_SETUP = (
    f"{_ROOT}.3.{branch}.1" for branch in ("3.4", "3.6", "4.4", "5.4", "6.3")
)
_UNAVAILABLE = frozenset({-1})
_OFF_ON = {7: "on", 8: "off"}
_TEMPERATURE, _HUMIDITY, _DEGREE_F = 10, 11, 14


def _sensor(values: str, setup: str, kind: int, rank: int = 50) -> Field:
    """One type of sensor; while its state is "unavailable" its value reads 0."""
    return number(
        f"{values}.4",
        suffix=str(kind),
        digits=f"{setup}.7",
        guard=Guard(f"{values}.3", _UNAVAILABLE, suffix=str(kind), deny=True),
        poll="slow" if values == _OUTLET else "fast",
        rank=rank,
    )


def _external(rows: str, kind: int) -> Table:
    return Table(
        rows=rows,
        keys=(f"{_EXTERNAL}.4",),
        where=Guard(f"{_EXTERNAL_SETUP}.2", frozenset({kind}), missing=False),
        fields={
            "value": (
                number(
                    f"{_EXTERNAL}.4",
                    digits=f"{_EXTERNAL_SETUP}.17",
                    guard=Guard(f"{_EXTERNAL}.3", _UNAVAILABLE, deny=True),
                    fahrenheit=(f"{_EXTERNAL_SETUP}.16", _DEGREE_F),
                ),
            )
        },
    )


PX2 = Profile(
    name="raritan-pdu2-mib",
    vendor="Raritan",
    prefixes=(_ROOT,),
    probe=(f"{_INLET}.4.1.1.5", f"{_INLET}.4.1.1.1"),
    absent=frozenset(),
    scalars={"model": (text(f"{_ROOT}.3.2.1.1.3", "1"), text(SYS_DESCR, "0", r"MD:(\S+)"), text(SYS_DESCR, "0"))},
    tables=(
        Table(
            rows="units",
            keys=(f"{_ROOT}.3.3.3.1.2",),
            id="inlet {index}",
            fields={
                "total_power_w": (_sensor(_INLET, _INLET_SETUP, 5, 10),),
                "apparent_power_va": (_sensor(_INLET, _INLET_SETUP, 6, 40),),
                "power_factor": (_sensor(_INLET, _INLET_SETUP, 7, 41),),
                "energy_wh": (_sensor(_INLET, _INLET_SETUP, 8, 42),),
                "frequency_hz": (_sensor(_INLET, _INLET_SETUP, 23, 60),),
                "current_a": (_sensor(_INLET, _INLET_SETUP, 1, 21),),
                "voltage_v": (_sensor(_INLET, _INLET_SETUP, 4, 30),),
            },
        ),
        Table(
            rows="phases",
            keys=(f"{_POLE}.4",),
            key_suffix="1",
            id="L{number}",
            fields={
                "voltage_v": (_sensor(_POLE, _POLE_SETUP, 25, 30), _sensor(_POLE, _POLE_SETUP, 4, 30)),
                "current_a": (_sensor(_POLE, _POLE_SETUP, 1, 21),),
                "power_w": (_sensor(_POLE, _POLE_SETUP, 5, 20),),
                "apparent_va": (_sensor(_POLE, _POLE_SETUP, 6, 43),),
                "power_factor": (_sensor(_POLE, _POLE_SETUP, 7, 44),),
                "energy_wh": (_sensor(_POLE, _POLE_SETUP, 8, 45),),
            },
        ),
        Table(
            rows="phases",
            keys=(f"{_ROOT}.3.3.3.1.2",),
            id="inlet",
            fallback=True,
            fields={
                "voltage_v": (_sensor(_INLET, _INLET_SETUP, 4, 30),),
                "current_a": (_sensor(_INLET, _INLET_SETUP, 1, 21),),
                "power_w": (_sensor(_INLET, _INLET_SETUP, 5, 20),),
                "apparent_va": (_sensor(_INLET, _INLET_SETUP, 6, 43),),
                "power_factor": (_sensor(_INLET, _INLET_SETUP, 7, 44),),
                "energy_wh": (_sensor(_INLET, _INLET_SETUP, 8, 45),),
            },
        ),
        Table(
            rows="banks",
            keys=(f"{_ROOT}.3.4.3.1.2",),
            id="{label}",
            fields={
                "label": (text(f"{_ROOT}.3.4.3.1.2"),),
                "current_a": (_sensor(_BREAKER, _BREAKER_SETUP, 1, 50),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_ROOT}.3.5.3.1.2",),
            fields={
                "name": (text(f"{_ROOT}.3.5.3.1.3"), name(f"{_ROOT}.3.5.3.1.2")),
                "current_a": (_sensor(_OUTLET, _OUTLET_SETUP, 1),),
                "voltage_v": (_sensor(_OUTLET, _OUTLET_SETUP, 4),),
                "power_w": (_sensor(_OUTLET, _OUTLET_SETUP, 5),),
                "apparent_va": (_sensor(_OUTLET, _OUTLET_SETUP, 6),),
                "power_factor": (_sensor(_OUTLET, _OUTLET_SETUP, 7),),
                "energy_wh": (_sensor(_OUTLET, _OUTLET_SETUP, 8),),
                "state": (
                    Field(column=f"{_ROOT}.4.1.2.1.3", kind="state", states=_OFF_ON),
                    Field(column=f"{_OUTLET}.3", suffix="14", kind="state", states=_OFF_ON),
                ),
            },
        ),
        _external("inlet_temps_c", _TEMPERATURE),
        _external("humidity_pct", _HUMIDITY),
    ),
)

_PX1 = "1.3.6.1.4.1.13742.4"
_IN, _LINE, _SOCKET, _PROBE = f"{_PX1}.1.20.2.1", f"{_PX1}.1.21.2.1", f"{_PX1}.1.2.2.1", f"{_PX1}.3.3.1"
_NOT_MEASURED = frozenset({0})  # what is not measured reads 0


def _px1_probe(rows: str, kind: int) -> Table:
    return Table(
        rows=rows,
        keys=(f"{_PROBE}.41",),
        where=Guard(f"{_PROBE}.2", frozenset({kind}), missing=False),
        fields={
            "value": (
                number(
                    f"{_PROBE}.41",
                    digits=f"{_PROBE}.17",
                    guard=Guard(f"{_PROBE}.40", _UNAVAILABLE, deny=True),
                    fahrenheit=(f"{_PROBE}.16", _DEGREE_F),
                ),
            )
        },
    )


PX1 = Profile(
    name="raritan-pdu-mib",
    vendor="Raritan",
    prefixes=(_PX1,),
    probe=(f"{_IN}.9.1", f"{_IN}.7.1"),
    absent=frozenset(),
    totals_from=(),
    scalars={
        "model": (text(SYS_DESCR, "0", r"Raritan (Dominion \S+)"), text(SYS_DESCR, "0")),
        "total_power_w": (number(f"{_IN}.9", suffix="1", poll="fast", rank=10),),
        "apparent_power_va": (number(f"{_IN}.10", suffix="1", poll="fast", rank=40),),
        "power_factor": (number(f"{_IN}.11", 0.01, suffix="1", poll="fast", rank=41),),
        "energy_wh": (number(f"{_IN}.12", suffix="1", absent=_NOT_MEASURED, poll="fast", rank=42),),
        "internal_temp_c": (number(f"{_PX1}.1.3.1.5", 0.1, suffix="0"),),
    },
    tables=(
        Table(
            rows="phases",
            keys=(f"{_LINE}.3",),
            id="L{number}",
            fields={
                "voltage_v": (number(f"{_LINE}.4", 0.001, absent=_NOT_MEASURED, poll="fast", rank=30),),
                "current_a": (number(f"{_LINE}.3", 0.001, poll="fast", rank=21),),
                "power_w": (number(f"{_LINE}.9", absent=_NOT_MEASURED, poll="fast", rank=20),),
            },
        ),
        Table(
            rows="phases",
            keys=(f"{_IN}.7",),
            id="L{number}",
            fallback=True,
            fields={
                "voltage_v": (number(f"{_IN}.8", 0.001, absent=_NOT_MEASURED, poll="fast", rank=30),),
                "current_a": (number(f"{_IN}.7", 0.001, poll="fast", rank=21),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_SOCKET}.2",),
            fields={
                "name": (name(f"{_SOCKET}.2"),),
                "current_a": (number(f"{_SOCKET}.4", 0.001),),
                "voltage_v": (number(f"{_SOCKET}.6", 0.001),),
                "power_w": (number(f"{_SOCKET}.7"),),
                "apparent_va": (number(f"{_SOCKET}.8"),),
                "energy_wh": (number(f"{_SOCKET}.31", absent=_NOT_MEASURED),),
                "state": (Field(column=f"{_SOCKET}.3", kind="state", states={0: "off", 1: "on"}),),
            },
        ),
        _px1_probe("inlet_temps_c", _TEMPERATURE),
        _px1_probe("humidity_pct", _HUMIDITY),
    ),
)
