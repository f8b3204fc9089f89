"""A tree of /sys and /proc as a host would have it, built file by file."""

import shutil
from pathlib import Path


class HostTree:
    """Below `root`; paths are given as the host has them, such as "/sys/class/hwmon"."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, value: object) -> Path:
        """One file."""
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value if isinstance(value, bytes) else f"{value}\n".encode())
        return file

    def fill(self, folder: str, **values: object) -> None:
        """Several files of a folder."""
        for name, value in values.items():
            self.write(f"{folder}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        here, there = self.path(path), self.path(target)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(Path(*[".."] * (len(here.parent.relative_to(self.root).parts))) / there.relative_to(self.root))

    def remove(self, path: str) -> None:
        here = self.path(path)
        if here.is_dir() and not here.is_symlink():
            shutil.rmtree(here)
        else:
            here.unlink()

    def chip(self, number: int, device: str, name: str, **values: object) -> str:
        """A hwmon chip of a device; its folder."""
        folder = f"{device}/hwmon/hwmon{number}"
        self.fill(folder, name=name, **values)
        self.link(f"{folder}/device", device)
        self.link(f"/sys/class/hwmon/hwmon{number}", folder)
        return folder

    def drive(self, number: int, hwmon: int, model: str = "KIOXIA KCD6XLUL3T84", **values: object) -> str:
        """An NVMe drive with its hwmon; the folder of that."""
        device = f"/sys/devices/pci0000:00/0000:0{number}:00.0/nvme/nvme{number}"
        self.fill(device, model=f"{model}    ", state="live")
        self.link(f"/sys/class/nvme/nvme{number}", device)
        folder = f"{device}/hwmon{hwmon}"
        defaults = {"temp1_label": "Composite", "temp1_input": 43850, "temp1_max": 79850, "temp1_crit": 84850}
        self.fill(folder, name="nvme", **defaults | {"temp1_alarm": 0} | values)
        self.link(f"{folder}/device", device)
        self.link(f"/sys/class/hwmon/hwmon{hwmon}", folder)
        return folder

    def cpu(self, number: int, package: int, core: int, core_count: int = 0, package_count: int = 0) -> str:
        """A logical processor that counts its throttling."""
        folder = f"/sys/devices/system/cpu/cpu{number}"
        self.fill(f"{folder}/topology", physical_package_id=package, core_id=core)
        self.fill(f"{folder}/thermal_throttle", core_throttle_count=core_count, package_throttle_count=package_count)
        return folder

    def port(self, device: str, pci: str = "0000:c1:00.0", *, netdev: str = "", **values: object) -> str:
        """A network card with one RDMA port; the port's folder."""
        where = f"/sys/devices/pci0000:c0/{pci}"
        folder = f"/sys/class/infiniband/{device}/ports/1"
        layer = "Ethernet" if netdev else "InfiniBand"
        defaults = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": layer}
        self.fill(folder, **defaults | values)
        self.fill(f"{folder}/counters", port_xmit_data=1000, port_rcv_data=2000, symbol_error=0, link_downed=0)
        self.fill(f"/sys/class/infiniband/{device}", board_id="MT_0000000838", fw_ver="28.39.1002")
        self.path(where).mkdir(parents=True, exist_ok=True)
        self.link(f"/sys/class/infiniband/{device}/device", where)
        if netdev:
            self.path(f"{where}/net/{netdev}").mkdir(parents=True)
            self.write(f"/sys/class/net/{netdev}/carrier_down_count", 1)
        return folder

    def zone(self, zone: str, name: str, energy_uj: int, range_uj: int = 262143328850) -> str:
        """A RAPL zone."""
        folder = f"/sys/class/powercap/{zone}"
        self.fill(folder, name=name, energy_uj=energy_uj, max_energy_range_uj=range_uj)
        return folder

    def pressure(self, resource: str, some: float = 0.0, full: float | None = 0.0) -> None:
        """Pressure in percent, the same over all windows."""
        lines = [f"some avg10={some:.2f} avg60={some:.2f} avg300={some:.2f} total=1500000"]
        if full is not None:
            lines.append(f"full avg10={full:.2f} avg60={full:.2f} avg300={full:.2f} total=700000")
        self.write(f"/proc/pressure/{resource}", "\n".join(lines))
