"""Server Technology: Sentry3 (indices tower.infeed.outlet) and Sentry4 (unit.cord.phase); units need not be contiguous.

Temperatures are in the scale that the device is set to. A neutral is listed as one more infeed without voltage.
"""

from nodewarden.sources.pdu.profile import SYS_DESCR, Guard, Profile, Table, name, number, state, text

_S3 = "1.3.6.1.4.1.1718.3"
_INFEED, _OUTLET3, _PROBE3 = f"{_S3}.2.2.1", f"{_S3}.2.3.1", f"{_S3}.2.5.1"
_FOUND = frozenset({0})

SENTRY3 = Profile(
    name="servertech-sentry3",
    vendor="Server Technology",
    prefixes=(_S3,),
    probe=(f"{_INFEED}.7.1.1",),
    scalars={
        "model": (text(f"{_S3}.2.1.1.7", "1"), text(SYS_DESCR, "0")),
        "total_power_w": (number(f"{_S3}.1.6", suffix="0", poll="fast", rank=10),),
    },
    totals_from=("phases",),
    derived=("total_power_w", "apparent_power_va", "energy_wh"),
    tables=(
        Table(
            rows="phases",
            keys=(f"{_INFEED}.7",),
            id="{label}",
            where=Guard(f"{_INFEED}.11", frozenset({-1}), deny=True),
            fields={
                "label": (text(f"{_INFEED}.2"),),
                "name": (name(f"{_INFEED}.3"),),
                "voltage_v": (
                    number(f"{_INFEED}.18", 0.1, poll="fast", rank=30),
                    number(f"{_INFEED}.11", 0.1, poll="fast", rank=30),
                ),
                "current_a": (number(f"{_INFEED}.7", 0.01, poll="fast", rank=21),),
                "power_w": (number(f"{_INFEED}.12", poll="fast", rank=20),),
                "apparent_va": (number(f"{_INFEED}.13"),),
                "power_factor": (number(f"{_INFEED}.14", 0.01),),
                "energy_wh": (number(f"{_INFEED}.16", 100),),
            },
        ),
        Table(
            rows="outlets",
            keys=(f"{_OUTLET3}.5", f"{_OUTLET3}.7"),
            fields={
                "name": (name(f"{_OUTLET3}.3"),),
                "current_a": (number(f"{_OUTLET3}.7", 0.01),),
                "voltage_v": (number(f"{_OUTLET3}.13", 0.1),),
                "power_w": (number(f"{_OUTLET3}.14"),),
                "energy_wh": (number(f"{_OUTLET3}.18"),),
                "state": (state(f"{_OUTLET3}.5", {0: "off", 1: "on"}),),
            },
        ),
        Table(
            rows="inlet_temps_c",
            keys=(f"{_PROBE3}.6",),
            id="{label}",
            where=Guard(f"{_PROBE3}.4", _FOUND),
            fields={
                "label": (text(f"{_PROBE3}.2"),),
                "value": (number(f"{_PROBE3}.6", 0.1, fahrenheit=(f"{_PROBE3}.13", 1)),),
            },
        ),
        Table(
            rows="humidity_pct",
            keys=(f"{_PROBE3}.10",),
            id="{label}",
            where=Guard(f"{_PROBE3}.9", _FOUND),
            fields={"label": (text(f"{_PROBE3}.2"),), "value": (number(f"{_PROBE3}.10"),)},
        ),
    ),
)

_S4 = "1.3.6.1.4.1.1718.4.1"
_CORD, _LINE, _PHASE, _BRANCH, _OUTLET4, _PROBE4 = (f"{_S4}.{table}" for table in (3, 4, 5, 7, 8, 9))
_NO_PROBE = frozenset({-410, -1})

SENTRY4 = Profile(
    name="servertech-sentry4",
    vendor="Server Technology",
    prefixes=("1.3.6.1.4.1.1718.4",),
    probe=(f"{_CORD}.3.1.3.1.1",),
    scalars={"model": (text(SYS_DESCR, "0"),)},
    derived=("total_power_w", "apparent_power_va", "energy_wh", "frequency_hz"),
    tables=(
        Table(
            rows="units",
            keys=(f"{_CORD}.3.1.3",),
            id="{label}",
            fields={
                "label": (text(f"{_CORD}.2.1.2"),),
                "total_power_w": (number(f"{_CORD}.3.1.3", poll="fast", rank=10),),
                "apparent_power_va": (number(f"{_CORD}.3.1.5", poll="fast", rank=40),),
                "power_factor": (number(f"{_CORD}.3.1.8", 0.01, poll="fast", rank=41),),
                "energy_wh": (number(f"{_CORD}.3.1.10", 100, poll="fast", rank=42),),
                "frequency_hz": (number(f"{_CORD}.3.1.11", 0.1),),
            },
        ),
        Table(
            rows="phases",
            keys=(f"{_PHASE}.3.1.3",),
            id="{label}",
            fields={
                "label": (text(f"{_PHASE}.2.1.4"),),
                "voltage_v": (number(f"{_PHASE}.3.1.3", 0.1, poll="fast", rank=30),),
                "current_a": (number(f"{_PHASE}.3.1.6", 0.01, poll="fast", rank=21),),
                "power_w": (number(f"{_PHASE}.3.1.8", poll="fast", rank=20),),
                "apparent_va": (number(f"{_PHASE}.3.1.9"),),
                "energy_wh": (number(f"{_PHASE}.3.1.13", 100),),
            },
        ),
        Table(
            rows="lines",
            keys=(f"{_LINE}.3.1.3",),
            id="{label}",
            fields={"label": (text(f"{_LINE}.2.1.4"),), "current_a": (number(f"{_LINE}.3.1.3", 0.01),)},
        ),
        Table(
            rows="banks",
            keys=(f"{_BRANCH}.3.1.3",),
            id="{label}",
            fields={"label": (text(f"{_BRANCH}.2.1.4"),), "current_a": (number(f"{_BRANCH}.3.1.3", 0.01),)},
        ),
        Table(
            rows="outlets",
            keys=(f"{_OUTLET4}.3.1.1", f"{_OUTLET4}.3.1.7"),
            fields={
                "name": (name(f"{_OUTLET4}.2.1.3"),),
                "current_a": (number(f"{_OUTLET4}.3.1.3", 0.01),),
                "voltage_v": (number(f"{_OUTLET4}.3.1.6", 0.1),),
                "power_w": (number(f"{_OUTLET4}.3.1.7"),),
                "apparent_va": (number(f"{_OUTLET4}.3.1.9"),),
                "energy_wh": (number(f"{_OUTLET4}.3.1.14"),),
                "state": (state(f"{_OUTLET4}.3.1.1", {1: "on", 2: "off"}),),
            },
        ),
        Table(
            rows="inlet_temps_c",
            keys=(f"{_PROBE4}.3.1.1",),
            id="{label}",
            where=Guard(f"{_PROBE4}.3.1.2", _FOUND),
            fields={
                "label": (text(f"{_PROBE4}.2.1.2"),),
                "value": (number(f"{_PROBE4}.3.1.1", 0.1, absent=_NO_PROBE, fahrenheit=(f"{_PROBE4}.1.10", 1)),),
            },
        ),
    ),
)
