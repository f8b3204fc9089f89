"""Panduit G5 rack PDUs. Tables have a fixed number of rows; those without a part behind them have type 0."""

from nodewarden.sources.pdu.profile import Guard, Profile, Table, name, number, state, text

_ROOT = "1.3.6.1.4.1.19536.10.1"
_INPUT, _PHASE, _GROUP, _OUTLET, _SWITCH = (f"{_ROOT}.{table}.1" for table in ("2.1", "2.2", "3.1", "5.1", "5.2"))

G5 = Profile(
    name="panduit-g5",
    vendor="Panduit",
    prefixes=(_ROOT,),
    probe=(f"{_INPUT}.5.1",),
    totals_from=(),
    scalars={
        "model": (text(f"{_ROOT}.1.2.1.7", "1"),),
        "total_power_w": (number(f"{_INPUT}.5", suffix="1", poll="fast", rank=10),),
        "apparent_power_va": (number(f"{_INPUT}.4", suffix="1", poll="fast", rank=40),),
        "power_factor": (number(f"{_INPUT}.9", 0.01, suffix="1", poll="fast", rank=41),),
        "energy_wh": (number(f"{_INPUT}.6", 1000, suffix="1", poll="fast", rank=42),),
        "frequency_hz": (number(f"{_INPUT}.2", 0.1, suffix="1"),),
        "total_current_a": (number(f"{_INPUT}.11", 0.01, suffix="1", poll="fast", rank=25),),
    },
    tables=(
        Table(
            rows="phases",
            keys=(f"{_PHASE}.11",),
            id="L{number}",
            fields={
                "voltage_v": (number(f"{_PHASE}.3", 0.1, poll="fast", rank=30),),
                "current_a": (number(f"{_PHASE}.11", 0.01, poll="fast", rank=21),),
                "power_w": (number(f"{_PHASE}.20", poll="fast", rank=20),),
            },
        ),
        Table(
            rows="banks",
            keys=(f"{_GROUP}.12",),
            id="{label}",
            where=Guard(f"{_GROUP}.3", frozenset({0}), deny=True),
            fields={
                "label": (text(f"{_GROUP}.2"),),
                "voltage_v": (number(f"{_GROUP}.5", 0.1),),
                "current_a": (number(f"{_GROUP}.12", 0.01),),
                "power_w": (number(f"{_GROUP}.20"),),
                "apparent_va": (number(f"{_GROUP}.19"),),
                "energy_wh": (number(f"{_GROUP}.21"),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_OUTLET}.13", f"{_SWITCH}.1"),
            fields={
                "name": (name(f"{_OUTLET}.2"),),
                "current_a": (number(f"{_OUTLET}.5", 0.01),),
                "power_w": (number(f"{_OUTLET}.13"),),
                "state": (state(f"{_SWITCH}.1", {1: "off", 2: "on"}),),
            },
        ),
    ),
)
