"""APC rack PDUs of the second generation (PowerNet-MIB rPDU2) with the older rPDU and sPDU branches behind them.

Left out of the second generation on some models, and taken from the older branches then: outlet states and names
(AP8959), watts (AP79xxB, where the card computes them from a configured voltage), everything (AP78xx, AP79xx; a
MasterSwitch has outlet states alone).
The two generations number states in opposite ways: rPDU2 has 1 off, 2 on; sPDU and rPDU have 1 on, 2 off.
"""

from nodewarden.sources.pdu.profile import SYS_DESCR, Field, Guard, Profile, Table, name, number, state, text

_APC = "1.3.6.1.4.1.318"
_RPDU2 = f"{_APC}.1.1.26"
_RPDU = f"{_APC}.1.1.12"
_SPDU = f"{_APC}.1.1.4"

_LOAD2 = {1: "low", 2: "normal", 3: "nearOverload", 4: "overload", 5: "notsupported"}
_LOAD = {1: "normal", 2: "low", 3: "nearOverload", 4: "overload"}
_OFF_ON = {1: "off", 2: "on"}
_ON_OFF = {1: "on", 2: "off"}

_MODEL = (
    text(f"{_RPDU2}.2.1.8", "1"),
    text(f"{_RPDU}.1.5", "0"),
    text(f"{_SPDU}.1.4", "0"),
    text(SYS_DESCR, "0", r"MN:(\S+)"),
)

_device, _phase, _bank, _probe = (f"{_RPDU2}.{branch}" for branch in ("4.3.1", "6.3.1", "8.3.1", "10.2.2.1"))
_metered, _switched = f"{_RPDU2}.9.4.3.1", f"{_RPDU2}.9.2.3.1"
_old_load, _old_outlet, _spdu_outlet = f"{_RPDU}.2.3.1.1", f"{_RPDU}.3.5.1.1", f"{_SPDU}.4.2.1"

_units = Table(
    rows="units",
    keys=(f"{_device}.1", f"{_device}.5"),
    fields={
        "total_power_w": (number(f"{_device}.5", 10, poll="fast", rank=10),),
        "apparent_power_va": (number(f"{_device}.16", 10, poll="fast", rank=40),),
        "energy_wh": (number(f"{_device}.9", 100, poll="fast", rank=42),),
        "power_factor": (number(f"{_device}.17", 0.01, poll="fast", rank=41),),
        "load_state": (state(f"{_device}.4", _LOAD2),),
    },
)

_phases = Table(
    rows="phases",
    keys=(f"{_phase}.3", f"{_phase}.5"),
    id="L{number}",
    fields={
        "number": (number(f"{_phase}.3", poll="once"),),
        "unit": (number(f"{_phase}.2", poll="once"),),
        "voltage_v": (number(f"{_phase}.6", poll="fast", rank=30),),
        "current_a": (number(f"{_phase}.5", 0.1, poll="fast", rank=21),),
        "power_w": (number(f"{_phase}.7", 10, poll="fast", rank=20),),
        "apparent_va": (number(f"{_phase}.8", 10),),
        "power_factor": (number(f"{_phase}.9", 0.01),),
        "load_state": (state(f"{_phase}.4", _LOAD2),),
    },
)

_banks = Table(
    rows="banks",
    keys=(f"{_bank}.3", f"{_bank}.5"),
    id="B{number}",
    count=f"{_RPDU2}.4.2.1.8",
    fields={
        "number": (number(f"{_bank}.3", poll="once"),),
        "unit": (number(f"{_bank}.2", poll="once"),),
        "current_a": (number(f"{_bank}.5", 0.1, poll="fast", rank=50),),
        "load_state": (state(f"{_bank}.4", _LOAD2),),
    },
)

_metered_outlets = Table(
    rows="outlets",
    keys=(f"{_metered}.3", f"{_metered}.7"),
    count=f"{_RPDU2}.4.2.1.6",
    fields={
        "name": (name(f"{_metered}.3"),),
        "current_a": (number(f"{_metered}.6", 0.1),),
        "power_w": (number(f"{_metered}.7"),),
        "energy_wh": (number(f"{_metered}.11", 100),),
    },
)

_switched_outlets = Table(
    rows="outlets",
    keys=(f"{_switched}.5",),
    fields={"name": (name(f"{_switched}.3"),), "state": (state(f"{_switched}.5", _OFF_ON),)},
)

_legacy_outlets = Table(
    rows="outlets",
    keys=(f"{_spdu_outlet}.3", f"{_old_outlet}.4"),
    fields={
        "name": (name(f"{_spdu_outlet}.4"), name(f"{_old_outlet}.2")),
        "current_a": (number(f"{_old_outlet}.7", 0.1),),
        "state": (state(f"{_spdu_outlet}.3", _ON_OFF), state(f"{_old_outlet}.4", _ON_OFF)),
    },
)


def _legacy_load(*, banks: bool) -> Table:
    """The load table of the first generation: a row per phase, then one per bank; `bank` is 0 in the rows of phases."""
    return Table(
        rows="banks" if banks else "phases",
        keys=(f"{_old_load}.4", f"{_old_load}.5"),
        id="B{number}" if banks else "L{number}",
        where=Guard(f"{_old_load}.5", frozenset({0}), deny=banks, missing=not banks),
        fallback=True,
        fields={
            "number": (Field(column=f"{_old_load}.{5 if banks else 4}", poll="once"),),
            "current_a": (number(f"{_old_load}.2", 0.1, poll="fast", rank=50 if banks else 21),),
            "load_state": (state(f"{_old_load}.3", _LOAD),),
        },
    )


RPDU2 = Profile(
    name="apc-rpdu2",
    vendor="APC",
    prefixes=tuple(f"{_APC}.1.3.4.{product}" for product in (2, 4, 5, 6, 8)),
    probe=(f"{_device}.5.1", f"{_RPDU}.1.16.0", f"{_old_load}.2.1", f"{_spdu_outlet}.3.1"),
    scalars={
        "model": _MODEL,
        "legacy_power_w": (number(f"{_RPDU}.1.16", suffix="0", poll="fast", rank=60),),
        "configured_line_voltage_v": (number(f"{_RPDU}.1.15", suffix="0", poll="once"),),
    },
    tables=(
        _units,
        _phases,
        _banks,
        _legacy_load(banks=False),
        _legacy_load(banks=True),
        _metered_outlets,
        _switched_outlets,
        _legacy_outlets,
        Table(
            rows="inlet_temps_c",
            keys=(f"{_probe}.8",),
            fields={"value": (number(f"{_probe}.8", 0.1),)},
        ),
        Table(
            rows="humidity_pct",
            keys=(f"{_probe}.10",),
            fields={"value": (number(f"{_probe}.10"),)},
        ),
    ),
    estimates={"total_power_w": "legacy_power_w"},
)
