"""CyberPower ePDU and ePDU2. The load table has rows of phases first, then rows of banks that repeat the same load."""

from nodewarden.sources.pdu.profile import Field, Guard, Profile, Table, name, number, state, text

_ROOT = "1.3.6.1.4.1.3808.1.1"
_LOAD, _OLD_OUTLET = f"{_ROOT}.3.2.3.1.1", f"{_ROOT}.3.3.5.1.1"
_DEVICE, _PHASE, _METER, _SWITCH = f"{_ROOT}.6.3.4.1", f"{_ROOT}.6.4.4.1", f"{_ROOT}.6.6.2.4.1", f"{_ROOT}.6.6.1.4.1"
_ON_OFF = {1: "on", 2: "off"}


def _load(*, banks: bool) -> Table:
    fields: dict[str, tuple[Field, ...]] = {
        "number": (number(f"{_LOAD}.{5 if banks else 4}", poll="once"),),
        "voltage_v": (number(f"{_LOAD}.6", 0.1, poll="fast", rank=30),),
        "current_a": (number(f"{_LOAD}.2", 0.1, poll="fast", rank=21),),
        "power_w": (number(f"{_LOAD}.7", poll="fast", rank=20),),
    }
    if not banks:
        fields["apparent_va"] = (number(f"{_LOAD}.8", poll="fast", rank=40),)
        fields["power_factor"] = (number(f"{_LOAD}.9", 0.01),)
        fields["energy_wh"] = (number(f"{_LOAD}.10", 100),)
    return Table(
        rows="banks" if banks else "phases",
        keys=(f"{_LOAD}.2",),
        id="B{number}" if banks else "L{number}",
        where=Guard(f"{_LOAD}.5", frozenset({0}), deny=banks, missing=not banks),
        fields=fields,
    )


EPDU = Profile(
    name="cyberpower-epdu",
    vendor="CyberPower",
    prefixes=(f"{_ROOT}.3", f"{_ROOT}.6"),
    probe=(f"{_DEVICE}.18.1", f"{_LOAD}.7.1"),
    scalars={
        "model": (text(f"{_ROOT}.3.1.5", "0"), text(f"{_ROOT}.6.2.2.1.9", "1")),
        "epdu2_total_power_w": (number(f"{_DEVICE}.18", suffix="1", poll="fast", rank=60),),
    },
    totals_from=("phases",),
    derived=("total_power_w", "apparent_power_va"),
    tables=(
        _load(banks=False),
        _load(banks=True),
        Table(
            rows="phases",
            keys=(f"{_PHASE}.5",),
            id="L{number}",
            fallback=True,
            fields={
                "voltage_v": (number(f"{_PHASE}.6", 0.1, poll="fast", rank=30),),
                "current_a": (number(f"{_PHASE}.5", 0.1, poll="fast", rank=21),),
                "power_w": (number(f"{_PHASE}.7", poll="fast", rank=20),),
                "apparent_va": (number(f"{_PHASE}.8", poll="fast", rank=40),),
                "power_factor": (number(f"{_PHASE}.9", 0.01),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_METER}.7",),
            fields={
                "current_a": (number(f"{_METER}.6", 0.1),),
                "power_w": (number(f"{_METER}.7"),),
                "energy_wh": (number(f"{_METER}.11", 100),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_OLD_OUTLET}.4",),
            fields={"name": (name(f"{_OLD_OUTLET}.2"),), "state": (state(f"{_OLD_OUTLET}.4", _ON_OFF),)},
        ),
        Table(
            rows="outlets",
            keys=(f"{_SWITCH}.5",),
            fields={"name": (name(f"{_SWITCH}.4"),), "state": (state(f"{_SWITCH}.5", _ON_OFF),)},
        ),
    ),
)
