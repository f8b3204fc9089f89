"""UPS by the standard UPS-MIB (RFC 1628), and Eaton's XUPS-MIB: what hangs behind them, line by line.

Real agents take liberties: kilowatts in an object of watts, negative watts on light phases, -1 and 4294967295 for
unknown.
Whether watts can be true is told by V x A (crosscheck.py).
"""

from msgspec import structs

from nodewarden.sources.pdu.profile import SYS_DESCR, Profile, Table, number, state, text

_UPS = "1.3.6.1.2.1.33.1"
_XUPS = "1.3.6.1.4.1.534.1"

RFC1628 = Profile(
    name="rfc1628",
    vendor="UPS",
    kind="ups",
    prefixes=(),
    probe=(f"{_UPS}.4.4.1.2.1", f"{_UPS}.4.1.0"),
    totals_from=("phases",),
    derived=("total_power_w",),
    scalars={
        "vendor": (text(f"{_UPS}.1.1", "0"),),
        "model": (text(f"{_UPS}.1.2", "0"),),
        "frequency_hz": (number(f"{_UPS}.4.2", 0.1, suffix="0"),),
        "output_source": (
            state(
                f"{_UPS}.4.1",
                {1: "other", 2: "none", 3: "normal", 4: "bypass", 5: "battery", 6: "booster", 7: "reducer"},
                poll="fast",
                suffix="0",
            ),
        ),
        "battery.charge_pct": (number(f"{_UPS}.2.4", suffix="0"),),
        "battery.minutes_remaining": (number(f"{_UPS}.2.3", suffix="0"),),
        "battery.voltage_v": (number(f"{_UPS}.2.5", 0.1, suffix="0"),),
        "battery.temp_c": (number(f"{_UPS}.2.7", suffix="0"),),
    },
    tables=(
        Table(
            rows="phases",
            keys=(f"{_UPS}.4.4.1.2",),
            id="output {index}",
            fields={
                "voltage_v": (number(f"{_UPS}.4.4.1.2", poll="fast", rank=30),),
                "current_a": (number(f"{_UPS}.4.4.1.3", 0.1, poll="fast", rank=21),),
                "power_w": (number(f"{_UPS}.4.4.1.4", signed=True, poll="fast", rank=20),),
                "load_pct": (number(f"{_UPS}.4.4.1.5"),),
            },
        ),
        Table(
            rows="input_lines",
            keys=(f"{_UPS}.3.3.1.3",),
            fields={
                "voltage_v": (number(f"{_UPS}.3.3.1.3"),),
                "frequency_hz": (number(f"{_UPS}.3.3.1.2", 0.1),),
            },
        ),
    ),
)

# Adapters of Generex (CS121, CS141) give the standard's branch itself as their sysObjectID.
GENEREX = structs.replace(
    RFC1628,
    name="rfc1628-generex",
    vendor="Generex",
    prefixes=("1.3.6.1.2.1.33",),
    scalars={
        **{key: fields for key, fields in RFC1628.scalars.items() if key != "vendor"},
        "model": (text(f"{_UPS}.1.4", "0", r"^(CS\d+)"), text(f"{_UPS}.1.2", "0")),
    },
)
HUAWEI = structs.replace(
    RFC1628,
    name="rfc1628-huawei",
    vendor="Huawei",
    prefixes=("1.3.6.1.4.1.2011.6.174",),
    scalars={key: fields for key, fields in RFC1628.scalars.items() if key != "vendor"},
)

XUPS = Profile(
    name="eaton-xups",
    vendor="Eaton",
    kind="ups",
    prefixes=(_XUPS,),
    probe=(f"{_XUPS}.4.4.1.4.1", f"{_XUPS}.4.4.1.2.1"),
    totals_from=("phases",),
    derived=("total_power_w",),
    scalars={
        "model": (text(f"{_XUPS}.1.2", "0"), text(SYS_DESCR, "0", r"^(\S*UPS)\b")),
        "frequency_hz": (number(f"{_XUPS}.4.2", 0.1, suffix="0"),),
        "load_pct": (number(f"{_XUPS}.4.1", suffix="0"),),
        "battery.charge_pct": (number(f"{_XUPS}.2.4", suffix="0"),),
        "battery.runtime_s": (number(f"{_XUPS}.2.1", suffix="0"),),
        "battery.voltage_v": (number(f"{_XUPS}.2.2", suffix="0"),),
        "internal_temp_c": (number(f"{_XUPS}.6.1", suffix="0"),),
    },
    tables=(
        Table(
            rows="phases",
            keys=(f"{_XUPS}.4.4.1.2",),
            id="output {index}",
            fields={
                "voltage_v": (number(f"{_XUPS}.4.4.1.2", poll="fast", rank=30),),
                "current_a": (number(f"{_XUPS}.4.4.1.3", poll="fast", rank=21),),
                "power_w": (number(f"{_XUPS}.4.4.1.4", poll="fast", rank=20),),
            },
        ),
        Table(
            rows="input_lines",
            keys=(f"{_XUPS}.3.4.1.2",),
            fields={"voltage_v": (number(f"{_XUPS}.3.4.1.2"),)},
        ),
        Table(rows="inlet_temps_c", keys=(f"{_XUPS}.6.5",), id="remote", fields={"value": (number(f"{_XUPS}.6.5"),)}),
        Table(rows="humidity_pct", keys=(f"{_XUPS}.6.6",), id="remote", fields={"value": (number(f"{_XUPS}.6.6"),)}),
    ),
)
