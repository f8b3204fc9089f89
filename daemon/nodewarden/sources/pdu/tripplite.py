"""Tripp Lite PDUs with a PADM card. Apparent power comes in hundredths of kVA; currents may be whole amperes only."""

from nodewarden.sources.pdu.profile import Profile, Table, name, number, state, text

_ROOT = "1.3.6.1.4.1.850.1.1.3.2.3"
_INPUT, _OUTPUT, _OUTLET, _CIRCUIT = f"{_ROOT}.1.2.1", f"{_ROOT}.2.1.1", f"{_ROOT}.3.1.1", f"{_ROOT}.4.1.1"

PADM = Profile(
    name="tripplite-pdu",
    vendor="Tripp Lite",
    prefixes=("1.3.6.1.4.1.850.1.1.1",),
    probe=(f"{_OUTPUT}.8.1.1",),
    scalars={
        "model": (text("1.3.6.1.4.1.850.1.1.1.2.1.5", "1"),),
        "frequency_hz": (number(f"{_INPUT}.3", 0.1, suffix="1.1"),),
    },
    totals_from=("phases",),
    derived=("total_power_w", "apparent_power_va"),
    tables=(
        Table(
            rows="phases",
            keys=(f"{_OUTPUT}.8",),
            id="output {index}",
            fields={
                "voltage_v": (number(f"{_OUTPUT}.4", 0.1, poll="fast", rank=30),),
                "current_a": (number(f"{_OUTPUT}.5", 0.01, poll="fast", rank=21),),
                "power_w": (number(f"{_OUTPUT}.8", poll="fast", rank=20),),
                "apparent_va": (number(f"{_OUTPUT}.12", 10, poll="fast", rank=40),),
            },
        ),
        Table(
            rows="inputs",
            keys=(f"{_INPUT}.4",),
            fields={"voltage_v": (number(f"{_INPUT}.4", 0.1),), "frequency_hz": (number(f"{_INPUT}.3", 0.1),)},
        ),
        Table(
            rows="banks",
            keys=(f"{_CIRCUIT}.4",),
            id="circuit {index}",
            fields={"current_a": (number(f"{_CIRCUIT}.4", 0.01),)},
        ),
        Table(
            rows="outlets",
            keys=(f"{_OUTLET}.4",),
            fields={
                "name": (name(f"{_OUTLET}.2"),),
                "voltage_v": (number(f"{_OUTLET}.7", 0.1),),
                "current_a": (number(f"{_OUTLET}.8", 0.01),),
                "state": (state(f"{_OUTLET}.4", {1: "off", 2: "on"}),),
            },
        ),
    ),
)
