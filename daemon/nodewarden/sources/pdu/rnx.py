"""RNX (Riedo) UPDU: RIEDONETWORKS-UPDU-MIB, upduMeterTable. One table for the unit, its wires, modules and outlets.

A row says what it is in upduMeterType; its values count while upduMeterDataQuality is ok (0; 1 = expired, 2 = no data).
"""

from nodewarden.sources.pdu.profile import SYS_DESCR, Field, Guard, Profile, Table, name, number, text

_METER = "1.3.6.1.4.1.55108.1.3.1.1"
_TYPE, _QUALITY = f"{_METER}.3", f"{_METER}.15"
_WIRE, _MODULE, _OUTLET = 3, 5, 6


def _good(column: int, scale: float = 1.0, suffix: str = "", **more: object) -> Field:
    guard = Guard(_QUALITY, frozenset({0}), suffix=suffix)
    return number(f"{_METER}.{column}", scale, suffix=suffix, guard=guard, **more)


def _of(kind: int) -> Guard:
    return Guard(_TYPE, frozenset({kind}), missing=False)


UPDU = Profile(
    name="rnx-updu",
    vendor="RNX/Riedo",
    prefixes=("1.3.6.1.4.1.55108",),
    probe=(f"{_METER}.7.0.0",),
    totals_from=(),
    scalars={
        "model": (text(SYS_DESCR, "0", r"^RNX (UPDU [A-Z0-9]+)"),),
        "total_power_w": (_good(7, suffix="0.0", poll="fast", rank=10),),
        "apparent_power_va": (_good(9, suffix="0.0", poll="fast", rank=40),),
        "energy_wh": (_good(4, suffix="0.0", poll="fast", rank=42),),
    },
    tables=(
        Table(
            rows="phases",
            keys=(f"{_METER}.7",),
            id="{label}",
            where=_of(_WIRE),
            fields={
                "label": (text(f"{_METER}.2"),),
                "voltage_v": (_good(10, 0.001, poll="fast", rank=30),),
                "current_a": (_good(11, 0.001, poll="fast", rank=21),),
                "power_w": (_good(7, poll="fast", rank=20),),
                "apparent_va": (_good(9),),
                "energy_wh": (_good(4),),
            },
        ),
        Table(
            rows="banks",
            keys=(f"{_METER}.7",),
            id="{label}",
            where=_of(_MODULE),
            fields={
                "label": (text(f"{_METER}.2"),),
                "voltage_v": (_good(10, 0.001),),
                "current_a": (_good(11, 0.001),),
                "power_w": (_good(7),),
                "apparent_va": (_good(9),),
                "energy_wh": (_good(4),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_METER}.7",),
            ordinal=True,
            where=_of(_OUTLET),
            fields={
                "name": (name(f"{_METER}.2"),),
                "voltage_v": (_good(10, 0.001),),
                "current_a": (_good(11, 0.001),),
                "power_w": (_good(7),),
                "apparent_va": (_good(9),),
                "energy_wh": (_good(4),),
            },
        ),
    ),
)
