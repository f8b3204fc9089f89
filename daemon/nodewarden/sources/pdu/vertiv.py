"""Vertiv and Geist PDUs with an interchangeable monitoring device (IMD, V5 of the Geist MIB).

The row of totals may be missing; the phases are summed then. The lines of a WYE unit read 0: its phases count.
"""

from nodewarden.sources.pdu.profile import Profile, Table, name, number, state, text

_ROOT = "1.3.6.1.4.1.21239.5.2"
_TOTAL, _PHASE, _BREAKER, _LINE, _SWITCH, _METER = (f"{_ROOT}.3.{table}.1" for table in (1, 2, 3, 4, 5, 6))

IMD = Profile(
    name="vertiv-geist-v5",
    vendor="Vertiv",
    prefixes=("1.3.6.1.4.1.21239.42.1",),
    probe=(f"{_TOTAL}.9.1", f"{_PHASE}.12.1"),
    scalars={
        "model": (text(f"{_ROOT}.1.8", "0", r"^([A-Za-z0-9]+)"),),
        "total_power_w": (number(f"{_TOTAL}.9", suffix="1", poll="fast", rank=10),),
        "apparent_power_va": (number(f"{_TOTAL}.10", suffix="1", poll="fast", rank=40),),
        "power_factor": (number(f"{_TOTAL}.11", 0.01, suffix="1", poll="fast", rank=41),),
        "energy_wh": (number(f"{_TOTAL}.12", suffix="1", poll="fast", rank=42),),
    },
    totals_from=("phases",),
    tables=(
        Table(
            rows="phases",
            keys=(f"{_PHASE}.8",),
            id="{label}",
            fields={
                "label": (text(f"{_PHASE}.3"), text(f"{_PHASE}.2")),
                "voltage_v": (number(f"{_PHASE}.4", 0.1, poll="fast", rank=30),),
                "current_a": (number(f"{_PHASE}.8", 0.01, poll="fast", rank=21),),
                "power_w": (number(f"{_PHASE}.12", poll="fast", rank=20),),
                "apparent_va": (number(f"{_PHASE}.13"),),
                "power_factor": (number(f"{_PHASE}.14", 0.01),),
                "energy_wh": (number(f"{_PHASE}.15"),),
            },
        ),
        Table(
            rows="banks",
            keys=(f"{_BREAKER}.4",),
            id="{label}",
            fields={
                "label": (text(f"{_BREAKER}.3"), text(f"{_BREAKER}.2")),
                "current_a": (number(f"{_BREAKER}.4", 0.01),),
            },
        ),
        Table(rows="lines", keys=(f"{_LINE}.4",), fields={"current_a": (number(f"{_LINE}.4", 0.01),)}),
        Table(
            rows="outlets",
            keys=(f"{_METER}.12",),
            fields={
                "name": (name(f"{_METER}.3"),),
                "voltage_v": (number(f"{_METER}.4", 0.1),),
                "current_a": (number(f"{_METER}.8", 0.01),),
                "power_w": (number(f"{_METER}.12"),),
                "energy_wh": (number(f"{_METER}.15"),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_SWITCH}.4",),
            fields={"name": (name(f"{_SWITCH}.3"),), "state": (state(f"{_SWITCH}.4", {1: "on", 2: "off"}),)},
        ),
    ),
)
