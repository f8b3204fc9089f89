"""APC Easy PDU EPDU1xxxM: readings are texts with units ("0.061kW") right below the enterprises branch.

It says nothing of itself: sysDescr is empty and sysObjectID is the bare branch, so only the probe tells.
"""

from nodewarden.sources.pdu.profile import Profile, Table, number

_ROOT = "1.3.6.1.4.1.1.1"

EPDU_STRINGS = Profile(
    name="apc-easypdu-strings",
    vendor="APC",
    model="EPDU1132M or another of its family",
    prefixes=("1.3.6.1.4.1.0",),
    probe=(f"{_ROOT}.3.1",),
    scalars={"frequency_hz": (number(f"{_ROOT}.27", suffix="1", units={"Hz": 1.0}),)},
    totals_from=("phases",),
    tables=(
        Table(
            rows="phases",
            keys=(f"{_ROOT}.1", f"{_ROOT}.3"),
            id="L{number}",
            fields={
                "voltage_v": (number(f"{_ROOT}.1", units={"V": 1.0}, poll="fast", rank=30),),
                "current_a": (number(f"{_ROOT}.2", units={"A": 1.0}, poll="fast", rank=21),),
                "power_w": (number(f"{_ROOT}.3", units={"kW": 1000.0, "W": 1.0}, poll="fast", rank=20),),
                "power_factor": (number(f"{_ROOT}.6", text=True, poll="fast", rank=41),),
                "energy_wh": (number(f"{_ROOT}.7", units={"kWh": 1000.0, "Wh": 1.0}, poll="fast", rank=42),),
            },
        ),
        Table(
            rows="inlet_temps_c",
            keys=(f"{_ROOT}.28",),
            fields={"value": (number(f"{_ROOT}.28", units={"C": 1.0}),)},
        ),
        Table(
            rows="humidity_pct",
            keys=(f"{_ROOT}.29",),
            fields={"value": (number(f"{_ROOT}.29", units={"%RH": 1.0}),)},
        ),
    ),
)
