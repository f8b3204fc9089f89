"""Gude Expert Power Control and others: each product has its own branch with the same tables in it."""

import functools

from nodewarden.sources.pdu.profile import SYS_DESCR, Profile, Table, name, number, state, text

ROOT = "1.3.6.1.4.1.28507"


@functools.cache
def profile(product: int) -> Profile:
    """The profile of one product number."""
    root = f"{ROOT}.{product}"
    meter, port = f"{root}.1.5.1.2.1", f"{root}.1.3.1.2.1"
    return Profile(
        name="gude-epc",
        vendor="Gude",
        prefixes=(root,),
        probe=(f"{meter}.4.1", f"{port}.3.1"),
        scalars={
            "model": (text(f"{root}.1.1.2.1", "0"), text(SYS_DESCR, "0")),
            "frequency_hz": (number(f"{meter}.7", 0.01, suffix="1"),),
        },
        totals_from=("phases",),
        derived=("total_power_w", "apparent_power_va", "energy_wh"),
        tables=(
            Table(
                rows="phases",
                keys=(f"{meter}.4",),
                id="channel {number}",
                fields={
                    "voltage_v": (number(f"{meter}.6", poll="fast", rank=30),),
                    "current_a": (number(f"{meter}.5", 0.001, poll="fast", rank=21),),
                    "power_w": (number(f"{meter}.4", poll="fast", rank=20),),
                    "apparent_va": (number(f"{meter}.10", poll="fast", rank=40),),
                    "power_factor": (number(f"{meter}.8", 0.001, signed=True, poll="fast", rank=41),),
                    "energy_wh": (number(f"{meter}.3", poll="fast", rank=42),),
                },
            ),
            Table(
                rows="outlets",
                keys=(f"{port}.3",),
                fields={"name": (name(f"{port}.2"),), "state": (state(f"{port}.3", {0: "off", 1: "on"}),)},
            ),
        ),
    )
