"""What the configuration file may say: its tables as frozen Structs with ranges and defaults, and secrets.

The words in the metadata and docstrings are what `nodectl config keys` and the messages show.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Secret:
    """A text that never shows itself; `reveal()` is called on the line that hands it to a library."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This node. `name` is the host's name unless given; with fewer than `expected_gpus` GPUs it is critical."""

    name: Annotated[
        str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=63, description="letters, digits . _ -")
    ]
    expected_gpus: Annotated[int, Meta(ge=0, le=64)] | None = None


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must not be passed. Temperature limits come from the boards; without `node_power_w` there is no sum limit.

    `failsafe_w` is what each GPU is capped to when an armed agent falls silent; without it caps stay as they are.
    """

    target_margin_c: Annotated[float, Meta(ge=0, le=30, description="degC below max-operating")] = 2.0
    node_power_w: Annotated[float, Meta(ge=100, le=200_000, description="watts, all GPUs together")] | None = None
    failsafe_w: Annotated[float, Meta(ge=50, le=3_000, description="watts per GPU")] | None = None


class SamplingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often readings are taken."""

    gpu_fast_s: Annotated[float, Meta(ge=0.1, le=60, description="seconds")] = 1.0
    gpu_slow_s: Annotated[float, Meta(ge=1, le=600, description="seconds")] = 10.0
    nvlink_raw: Annotated[bool, Meta(description="also the NVLink bytes with protocol overhead")] = False
    host_s: Annotated[float, Meta(ge=0, le=600, description="seconds, 0 = off")] = 10.0
    pdu_totals_s: Annotated[float, Meta(ge=1, le=600, description="seconds")] = 5.0
    pdu_outlets_s: Annotated[float, Meta(ge=2, le=600, description="seconds")] = 10.0
    pdu_other_outlets_s: Annotated[float, Meta(ge=0, le=3600, description="seconds, 0 = off")] = 60.0


class SnmpAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SNMPv3 authentication of a PDU."""

    secret_file: Annotated[str, Meta(max_length=4096)]
    protocol: Literal["md5", "sha", "sha224", "sha256", "sha384", "sha512"] = "sha"
    secret: Annotated[Secret | None, Meta(extra={"filled": True})] = None


class SnmpPriv(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SNMPv3 privacy of a PDU. "aes192c" and "aes256c" stretch a short key as Cisco and many PDUs do."""

    secret_file: Annotated[str, Meta(max_length=4096)]
    protocol: Literal["des", "aes", "aes192", "aes256", "aes192c", "aes256c"] = "aes"
    secret: Annotated[Secret | None, Meta(extra={"filled": True})] = None


class PduConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rack PDU by its address; repeat the table for each.

    `outlets` are the numbers of those that feed this node, `limit_w` bounds their sum. Versions "1" and "2c" need
    `community_file` (or `community`), version "3" needs `user`, and `auth` and `priv` as the device wants them
    (privacy needs the package cryptography). With `rated_w` or `rated_a` a load over 80 % of them is a problem; else
    what the device itself says of its load. `period_s` is how often this one is read; else sampling.pdu_totals_s.
    """

    name: Annotated[str, Meta(min_length=1, max_length=63, description="unique, without / and control characters")]
    host: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.:\-]+(%[A-Za-z0-9_.\-]+)?$", max_length=253, description="name or address")
    ]
    feed: Annotated[str, Meta(max_length=63)] = ""
    port: Annotated[int, Meta(ge=1, le=65535)] = 161
    version: Literal["1", "2c", "3"] = "2c"
    community: Secret | None = None
    community_file: Annotated[str, Meta(max_length=4096)] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    auth: SnmpAuth | None = None
    priv: SnmpPriv | None = None
    context: Annotated[str, Meta(max_length=32, description="SNMPv3 context, empty for the default one")] = ""
    outlets: tuple[Annotated[int, Meta(ge=1, le=999, description="outlet number")], ...] = ()
    limit_w: Annotated[float, Meta(ge=50, le=100_000, description="watts, the sum of these outlets")] | None = None
    timeout_s: Annotated[float, Meta(ge=0.2, le=10, description="seconds per request")] = 2.0
    period_s: Annotated[float, Meta(ge=1, le=3600, description="seconds")] | None = None
    rated_w: Annotated[float, Meta(ge=50, le=1_000_000, description="watts, the whole PDU")] | None = None
    rated_a: Annotated[float, Meta(ge=1, le=2_000, description="amperes per phase")] | None = None


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP port, where /metrics and /healthz answer."""

    listen: Annotated[str, Meta(max_length=253, description='"ADDRESS:PORT"')] = "0.0.0.0:10048"

    @property
    def host(self) -> str:
        """Address to bind."""
        return split_listen(self.listen)[0]

    @property
    def port(self) -> int:
        """TCP port."""
        return split_listen(self.listen)[1]


class JobsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training jobs. With "gpu-process" the votes of a session count only if its process computes on its GPU.

    Jobs that are not connected are named by Slurm's cgroups. `prolog_dir` holds files that a prolog writes, one per GPU
    index or uuid with a job id; `pod_resources` is the kubelet's socket, usually
    /var/lib/kubelet/pod-resources/kubelet.sock (needs the extra `kubernetes`).
    """

    verify: Literal["gpu-process", "none"] = "gpu-process"
    prolog_dir: Annotated[str, Meta(max_length=4096)] | None = None
    pod_resources: Annotated[str, Meta(max_length=107, description="a Unix socket")] | None = None


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of what was decided is kept, whichever is less."""

    max_age_days: Annotated[float, Meta(ge=1, le=3650, description="days")] = 90.0
    max_entries: Annotated[int, Meta(ge=1_000, le=10_000_000)] = 200_000


_TOPIC = r"^[^+#\x00-\x1f\x7f/]+(/[^+#\x00-\x1f\x7f/]+)*$"


class XidConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the driver's error numbers mean: `table` names a file whose rows go over those of the package."""

    table: Annotated[str, Meta(max_length=4096, description="a TOML file, see docs/xid.md")] | None = None


class MqttConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The MQTT broker that the node's state is published to; nothing is ever taken from it.

    Without `port` it is 1883, with `tls` 8883. TLS always verifies: against `ca_file`, or what the system trusts;
    `cert_file` and `key_file` are this node's own. All three are read again at each connection.
    """

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    user: Annotated[str, Meta(max_length=255)] | None = None
    password_file: Annotated[str, Meta(max_length=4096)] | None = None
    password: Annotated[Secret | None, Meta(extra={"filled": True})] = None
    tls: bool = False
    ca_file: Annotated[str, Meta(max_length=4096)] | None = None
    cert_file: Annotated[str, Meta(max_length=4096)] | None = None
    key_file: Annotated[str, Meta(max_length=4096)] | None = None
    topic: Annotated[str, Meta(pattern=_TOPIC, max_length=200, description="first levels, without + and #")] = (
        "nodewarden"
    )
    period_s: Annotated[float, Meta(ge=1, le=3600, description="seconds")] = 10.0
    home_assistant: bool = False
    home_assistant_prefix: Annotated[str, Meta(pattern=_TOPIC, max_length=200)] = "homeassistant"

    @property
    def broker_port(self) -> int:
        """TCP port."""
        return self.port or (8883 if self.tls else 1883)


class BmcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's own management controller, read by Redfish.

    `user` may be read-only. Its certificate is verified: against `ca_file`, or what the system trusts, or by its own
    SHA-256 in `fingerprint` (then neither its name nor its dates count). `period_s` is for totals, supplies and fans;
    single sensors are read in the time that is left. `nodectl bmc discover` shows what it tells.
    """

    url: Annotated[str, Meta(pattern=r"^https?://[^/@\s]+/?$", max_length=300, description='"https://HOST[:PORT]"')]
    user: Annotated[str, Meta(max_length=255)] = ""
    password_file: Annotated[str, Meta(max_length=4096)] | None = None
    password: Annotated[Secret | None, Meta(extra={"filled": True})] = None
    ca_file: Annotated[str, Meta(max_length=4096)] | None = None
    fingerprint: (
        Annotated[str, Meta(pattern="^([0-9A-Fa-f]{2}:?){32}$", description="SHA-256, 64 hex digits")] | None
    ) = None
    period_s: Annotated[float, Meta(ge=2, le=3600, description="seconds")] = 10.0
    timeout_s: Annotated[float, Meta(ge=1, le=120, description="seconds per request")] = 30.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file after defaults, the overlay of this host, and secrets. `warnings` are for the log."""

    node: NodeConfig
    limits: LimitsConfig = LimitsConfig()
    sampling: SamplingConfig = SamplingConfig()
    pdu: tuple[PduConfig, ...] = ()
    http: HttpConfig = HttpConfig()
    jobs: JobsConfig = JobsConfig()
    journal: JournalConfig = JournalConfig()
    xid: XidConfig = XidConfig()
    mqtt: MqttConfig | None = None
    bmc: BmcConfig | None = None
    path: Annotated[Path | None, Meta(extra={"filled": True})] = None
    warnings: Annotated[tuple[str, ...], Meta(extra={"filled": True})] = ()


def split_listen(listen: str) -> tuple[str, int]:
    """Address and port of "ADDRESS:PORT"; raises ValueError with what is allowed."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError('allowed: "ADDRESS:PORT" with a port from 1 to 65535, such as "0.0.0.0:10048" or "[::]:10048"')
    host = host.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(host)), int(port)
    except ValueError:
        raise ValueError('allowed: an IP address before the port, such as "127.0.0.1" or "[::1]"') from None
