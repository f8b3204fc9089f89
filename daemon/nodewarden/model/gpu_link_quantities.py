"""The rows of a GPU's links: PCIe, NVLink and the fabric behind it.

Temperature and errors of NVSwitches are not here: NVML does not give them (their own library does); what it says of the
switches is how many links lead to one, and the state of the fabric.
"""

from typing import Final

from nodewarden.model.quantity import FIELDS, NONE, NVLINK, Quantity, row

_FABRIC = "nvmlDeviceGetGpuFabricInfoV (version 3, version 2), nvmlDeviceGetGpuFabricInfo"
_SXM = "SXM boards with NVSwitch"
_SAME = "none, the same call"

LINK_QUANTITIES: Final[tuple[Quantity, ...]] = (
    row(
        "pcie_generation", "gpu_pcie_generation", "PCIe generation, now and at most; it falls at idle.", "slow",
        "nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetMaxPcieLinkGeneration", ("which",), cost="2 calls", low=1,
        high=10,
    ),
    row(
        "pcie_width", "gpu_pcie_lanes", "PCIe lanes, now and at most.", "slow",
        "nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth", ("which",), cost="2 calls", low=1, high=32,
    ),
    row(
        "pcie_replays", "gpu_pcie_replays_total",
        "PCIe packets sent again; a few are normal on a healthy GPU, a rising rate is not.", "slow",
        "field 94, nvmlDeviceGetPcieReplayCounter", cost=FIELDS,
    ),
    row(
        "pcie_transmit_bytes", "gpu_pcie_transmit_bytes_total", "Sent over PCIe since the driver is watched, bytes.",
        "slow", "field 197, wraps followed", cost=FIELDS,
    ),
    row(
        "pcie_receive_bytes", "gpu_pcie_receive_bytes_total", "Received over PCIe since the driver is watched, bytes.",
        "slow", "field 198, wraps followed", cost=FIELDS,
    ),
    row(
        "nvlink_up", "nvlink_up", "1 while the NVLink is active; only links that were active since the start.", "slow",
        "field 165 scope link, nvmlDeviceGetNvLinkState", ("link",), boards=NVLINK, cost=FIELDS, high=1,
    ),
    row(
        "nvlink_transmit_bytes", "nvlink_transmit_bytes_total", "Payload sent over the NVLink, bytes.", "slow",
        "field 138 scope link (KiB), field 202 (bytes)", ("link",), boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlink_receive_bytes", "nvlink_receive_bytes_total", "Payload received over the NVLink, bytes.", "slow",
        "field 139 scope link (KiB), field 204 (bytes)", ("link",), boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlink_raw_transmit_bytes", "nvlink_raw_transmit_bytes_total",
        "Sent over the NVLink with protocol overhead, bytes; read with sampling.nvlink_raw = true.", "slow",
        "field 140 scope link (KiB)", ("link",), boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlink_raw_receive_bytes", "nvlink_raw_receive_bytes_total",
        "Received over the NVLink with protocol overhead, bytes; read with sampling.nvlink_raw = true.", "slow",
        "field 141 scope link (KiB)", ("link",), boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlink_errors", "nvlink_errors_total",
        "Errors of the NVLink by kind (replay, recovery, crc_flit, crc_data, ecc_data); no line while 0, see the GPU's "
        "totals.",
        "rare",
        "fields 46.. to 159, nvmlDeviceGetNvLinkErrorCounter (links 12 and up)", ("link", "kind"), boards=NVLINK,
        cost="the one field call; 5 calls per link from 12 up",
    ),
    row(
        "nvlink_speed", "nvlink_speed_bytes_per_second", "Speed of the NVLink in each direction, bytes per second.",
        "rare", "field 164 scope link, field 90", ("link",), boards=NVLINK, cost=FIELDS, low=1, high=1e13,
    ),
    row(
        "nvlink_info", "nvlink_info", "The other end of the NVLink; always 1.", "rare",
        "nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo",
        ("link", "remote_type", "remote_pci_bus_id"), boards=NVLINK, cost="2 calls per link, once", high=1,
    ),
    row(
        "nvlink_total_transmit_bytes", "gpu_nvlink_transmit_bytes_total",
        "Payload sent over all NVLinks, bytes; absent where a part of it is.", "slow",
        "field 138 scope UINT_MAX, the sum of the links", boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlink_total_receive_bytes", "gpu_nvlink_receive_bytes_total",
        "Payload received over all NVLinks, bytes; absent where a part of it is.", "slow",
        "field 139 scope UINT_MAX, the sum of the links", boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlink_total_errors", "gpu_nvlink_errors_total", "Errors of all NVLinks by kind.", "slow",
        "fields 52, 59, 38, 45, 160", ("kind",), boards=NVLINK, cost=FIELDS,
    ),
    row(
        "nvlinks_down", "gpu_nvlinks_down", "NVLinks that were active since the start and are not now.", "slow",
        "nvlink_up", boards=NVLINK, cost=NONE, high=64,
    ),
    row(
        "nvswitch_links", "gpu_nvswitch_links", "NVLinks that lead to an NVSwitch.", "rare", "field 147",
        boards=_SXM, cost=FIELDS, high=64,
    ),
    row(
        "fabric_state", "gpu_fabric_state", "Registration with the fabric: 1 not started, 2 in progress, 3 completed.",
        "slow", _FABRIC, boards=_SXM, low=1, high=3,
    ),
    row(
        "fabric_status", "gpu_fabric_status", "Result of the registration: 0 = success, else NVML's code.",
        "slow", _FABRIC, boards=_SXM, cost=_SAME, high=999,
    ),
    row(
        "fabric_healthy", "gpu_fabric_healthy", "1 when the fabric says that it is healthy, 0 when not.", "slow",
        _FABRIC, boards=_SXM, cost=_SAME, high=1,
    ),
    row(
        "fabric_trouble", "gpu_fabric_trouble",
        "1 while the fabric reports degraded_bandwidth, route_recovery, route_unhealthy, access_timeout_recovery or "
        "incorrect_configuration.",
        "slow", _FABRIC, ("trouble",), boards=_SXM, cost=_SAME, high=1,
    ),
    row(
        "fabric_info", "gpu_fabric_info", "Cluster and clique of the GPU in the fabric; always 1.", "slow", _FABRIC,
        ("cluster_uuid", "clique"), boards=_SXM, cost=_SAME, high=1,
    ),
)  # fmt: skip
