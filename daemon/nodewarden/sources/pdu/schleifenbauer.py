"""Schleifenbauer (hPDU, DPM) and Conteg by the same maker: SCHLEIFENBAUER-DATABUS-MIB, sdbDevMeasures.

One gateway speaks for all devices on its ring: rows are DEVICE.INPUT and DEVICE.OUTLET. There is no real power, only
apparent power (sdbDevInPowerVoltAmpere).
"""

from nodewarden.sources.pdu.profile import Profile, Table, name, number, text


def _profile(title: str, vendor: str, root: str) -> Profile:
    ring = f"{root}.12.1.1.2"
    identity, inputs, outlets = f"{ring}.1.1.1", f"{ring}.6.1.1", f"{ring}.7.2.1"
    return Profile(
        name=title,
        vendor=vendor,
        prefixes=(root,),
        probe=(f"{inputs}.5.1.1", f"{outlets}.7.1.1"),
        totals_from=("phases",),
        derived=("apparent_power_va", "energy_wh"),
        scalars={"model": (text(f"{identity}.4", "1"),)},
        tables=(
            Table(
                rows="units",
                keys=(f"{identity}.2",),
                fields={"name": (name(f"{identity}.10"),)},
                sums={"apparent_power_va": ("phases", "apparent_va")},
            ),
            Table(
                rows="phases",
                keys=(f"{inputs}.5",),
                id="dev {0} input {1}",
                fields={
                    "voltage_v": (number(f"{inputs}.7", 0.01, poll="fast", rank=30),),
                    "current_a": (number(f"{inputs}.5", 0.01, poll="fast", rank=21),),
                    "power_factor": (number(f"{inputs}.4", 0.0001),),
                    "apparent_va": (number(f"{inputs}.9", poll="fast", rank=40),),
                    "energy_wh": (number(f"{inputs}.2", 1000),),
                },
            ),
            Table(
                rows="outlets",
                keys=(f"{outlets}.5",),
                ordinal=True,
                fields={
                    "name": (name(f"{ring}.7.1.1.2"),),
                    "voltage_v": (number(f"{outlets}.7", 0.01),),
                    "current_a": (number(f"{outlets}.5", 0.01),),
                    "apparent_va": (number(f"{outlets}.10"),),
                    "energy_wh": (number(f"{outlets}.2", 1000),),
                },
            ),
        ),
    )


SDB = _profile("schleifenbauer-sdb", "Schleifenbauer", "1.3.6.1.4.1.31034")
CONTEG = _profile("conteg", "Conteg", "1.3.6.1.4.1.28402")
