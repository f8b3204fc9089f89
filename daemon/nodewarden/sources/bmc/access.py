"""From the configuration of the BMC to the source that reads it."""

from nodewarden.clock import Clock
from nodewarden.config_schema import BmcConfig
from nodewarden.devices.redfish import Access, RedfishClient
from nodewarden.sources.bmc.source import RedfishSource
from nodewarden.store import SnapshotStore


def source_of(config: BmcConfig, store: SnapshotStore, clock: Clock, node: str) -> RedfishSource:
    """The source of a configured BMC; nothing is sent yet."""
    password = "" if config.password is None else config.password.reveal()
    access = Access(
        config.url.rstrip("/"),
        config.user,
        password,
        ca=config.ca_file or "",
        fingerprint=config.fingerprint or "",
    )
    client = RedfishClient(access, timeout_s=config.timeout_s)
    return RedfishSource(client, store, clock, period_s=config.period_s, name=f"{node}/bmc")
