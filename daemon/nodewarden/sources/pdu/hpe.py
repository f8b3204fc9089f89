"""HPE rack PDUs (CPQPOWER-MIB): the pdu2 and pdu3 branches, one layout in different units, and the management module.

Scales follow what devices send, where the text of the MIB says otherwise: power factors are thousandths, the total is
watts, and the currents of the management module are whole amperes.
"""

from nodewarden.sources.pdu.profile import SYS_DESCR, Guard, Profile, Table, name, number, state, text

_ROOT = "1.3.6.1.4.1.232.165"
_CONNECTED = frozenset({2})


def _profile(branch: int, volts: float, amperes: float) -> Profile:
    root = f"{_ROOT}.{branch}"
    total, phase, outlet, switch = f"{root}.2.1.1", f"{root}.2.2.1", f"{root}.5.1.1", f"{root}.5.2.1"
    heat, damp = f"{root}.4.2.1", f"{root}.4.3.1"
    return Profile(
        name=f"hpe-cpqpower-pdu{2 if branch == 7 else 3}",
        vendor="HPE",
        prefixes=(root,),
        probe=(f"{total}.5.0", f"{total}.5.1", f"{phase}.21.0.1", f"{phase}.21.1.1"),
        scalars={
            "model": (text(f"{_ROOT}.1.2.2", "0"), text(SYS_DESCR, "0")),
            "frequency_hz": (number(f"{total}.2", 0.1, suffix="0"),),
        },
        tables=(
            Table(
                rows="units",
                keys=(f"{total}.5",),
                id="pdu {index}",
                fields={"total_power_w": (number(f"{total}.5", poll="fast", rank=10),)},
            ),
            Table(
                rows="phases",
                keys=(f"{phase}.11", f"{phase}.21"),
                id="L{number}",
                fields={
                    "voltage_v": (number(f"{phase}.3", volts, poll="fast", rank=30),),
                    "current_a": (number(f"{phase}.11", amperes, poll="fast", rank=21),),
                    "power_w": (number(f"{phase}.21", poll="fast", rank=20),),
                    "power_factor": (number(f"{phase}.24", 0.001, signed=True),),
                },
            ),
            Table(
                rows="outlets",
                keys=(f"{outlet}.2", f"{outlet}.14"),
                fields={
                    "name": (name(f"{outlet}.2"),),
                    "current_a": (number(f"{outlet}.5", amperes),),
                    "power_w": (number(f"{outlet}.14"),),
                    "state": (state(f"{switch}.1", {1: "off", 2: "on"}),),
                },
            ),
            Table(
                rows="inlet_temps_c",
                keys=(f"{heat}.4",),
                where=Guard(f"{heat}.3", _CONNECTED, missing=False),  # a probe that is not connected reads 0
                fields={"value": (number(f"{heat}.4", 0.1),)},
            ),
            Table(
                rows="humidity_pct",
                keys=(f"{damp}.4",),
                where=Guard(f"{damp}.3", _CONNECTED, missing=False),
                fields={"value": (number(f"{damp}.4", 0.1),)},
            ),
        ),
    )


PDU2 = _profile(7, 0.001, 0.001)
PDU3 = _profile(11, 0.1, 0.01)

_UNIT, _BREAKER = f"{_ROOT}.2.3.1.1", f"{_ROOT}.2.3.2.1"

MANAGEMENT_MODULE = Profile(
    name="hpe-cpqpower-pdu1",
    vendor="HPE",
    prefixes=(f"{_ROOT}.2",),
    probe=(f"{_UNIT}.4.1",),
    scalars={"model": (text(SYS_DESCR, "0", r"(PDU Management Module)"), text(SYS_DESCR, "0"))},
    tables=(
        Table(
            rows="units",
            keys=(f"{_UNIT}.4",),
            id="pdu {number}",
            fields={
                "total_power_w": (number(f"{_UNIT}.4", poll="fast", rank=10),),
                "load_pct": (number(f"{_UNIT}.2"),),
            },
        ),
        Table(
            rows="banks",
            keys=(f"{_BREAKER}.3",),
            id="breaker {index}",
            where=Guard(f"{_BREAKER}.2", frozenset({0}), deny=True),  # rows for breakers that the unit does not have
            fields={
                "voltage_v": (number(f"{_BREAKER}.2", poll="fast", rank=30),),
                "current_a": (number(f"{_BREAKER}.3", poll="fast", rank=21),),
            },
        ),
    ),
)
