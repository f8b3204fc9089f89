"""What the boards of the stand-in answer beyond power and heat (quantities.c), as they were seen idle and healthy."""

GPM, ROW_REMAP, FABRIC, RETIRED_PAGES = 8, 16, 32, 64
LINK_STATE_FIELD, PCIE_BYTES, SRAM_STATUS, RECOVERY_ACTION = 128, 256, 512, 1024

MIB = 1 << 20
_H100 = GPM | ROW_REMAP | LINK_STATE_FIELD | PCIE_BYTES | SRAM_STATUS | RECOVERY_ACTION
FEATURES = {
    "a100": ROW_REMAP | SRAM_STATUS,
    "h100": _H100 | FABRIC,
    "h100-pcie": _H100,
    "h100-nvl": _H100,
}
_SWITCH, _GPU = 2, 0
_COMMON: dict[str, object] = {
    "pstate": 0,
    "pcie_width": (16, 16),
    "pcie_bytes_type": 3,
    "ecc_mode": (1, 1),
    "bar1_total": 131_072 * MIB,
    "bar1_used": 1 * MIB,
    "fabric_version": 3,
}
MORE: dict[str, dict[str, object]] = {
    "a100": _COMMON
    | {
        "vbios": b"92.00.45.00.05",
        "part_number": b"692-2G506-0212-002",
        "compute_capability": 80,
        "pcie_generation": (4, 4),
        "banks": (640, 0, 0, 0, 0),
        "link_remote_type": (_SWITCH,) * 12,
        "link_remote_bus": tuple(0xC4 + link % 6 for link in range(12)),
        "nvswitch_links": 12,
    },
    "h100": _COMMON
    | {
        "vbios": b"96.00.A5.00.01",
        "part_number": b"692-2G520-0200-000",
        "compute_capability": 90,
        "pcie_generation": (5, 5),
        "pcie_replays": 9,
        "banks": (2560, 0, 0, 0, 0),
        "fabric": (3, 0, 0, 0, 0),  # completed, success; all of its health "N/A"
        "link_remote_type": (_SWITCH,) * 18,
        "link_remote_bus": tuple(0xC6 + link % 4 for link in range(18)),
        "nvswitch_links": 18,
    },
    "h100-pcie": _COMMON
    | {
        "vbios": b"96.00.A5.00.0C",
        "part_number": b"900-21010-0000-000",
        "compute_capability": 90,
        "pcie_generation": (5, 5),
        "banks": (2560, 0, 0, 0, 0),
    },
    "h100-nvl": _COMMON
    | {
        "vbios": b"96.00.9F.00.04",
        "part_number": b"900-21010-0020-000",
        "compute_capability": 90,
        "pcie_generation": (5, 5),
        "banks": (3072, 0, 0, 0, 0),
        "link_remote_type": (_GPU,) * 12,
        "link_remote_bus": (0x0B,) * 12,
    },
}
