"""SNMPv3 against Debian's snmpd: all protocols, wrong credentials by name, engines that change, no secret shown."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from nodewarden.devices import pysnmp_engine
from nodewarden.devices.snmp import SnmpDevice, SnmpEngine
from nodewarden.devices.snmp_access import AUTH_PROTOCOLS, CREDENTIALS_REASONS, PRIV_PROTOCOLS, User
from nodewarden.errors import DeviceError, DeviceTimeoutError, NotSupportedError
from nodewarden.sim.snmp_agent import INTEGER, Typed
from support.ports import free_udp_port
from support.snmp_agents import Agent
from support.snmpd import AUTH_PASSWORD, PRIV_PASSWORD, Snmpd

pytestmark = pytest.mark.real

NAME = "1.3.6.1.2.1.1.1.0"
UP_TIME = "1.3.6.1.2.1.1.3.0"
SYSTEM = "1.3.6.1.2.1.1"

KINDS: list[tuple[str | None, str | None]] = [
    (None, None),
    *((auth, None) for auth in AUTH_PROTOCOLS),
    *(("sha", priv) for priv in PRIV_PROTOCOLS),
    ("md5", "des"),
    ("md5", "aes256"),
    ("sha256", "aes"),
    ("sha256", "aes256"),
    ("sha512", "aes192"),
    ("sha512", "aes256c"),
]


def name_of(auth: str | None, priv: str | None) -> str:
    return f"u-{auth or 'none'}-{priv or 'none'}"


@pytest.fixture(scope="module")
def snmpd() -> Iterator[Snmpd]:
    with Snmpd([(name_of(*kind), *kind) for kind in KINDS]) as server:
        yield server


def user(auth: str | None, priv: str | None, /, *, name: str | None = None, **passwords: str) -> User:
    return User(
        name or name_of(auth, priv),
        auth=None if auth is None else (auth, passwords.get("auth", AUTH_PASSWORD)),  # type: ignore[arg-type]
        priv=None if priv is None else (priv, passwords.get("priv", PRIV_PASSWORD)),  # type: ignore[arg-type]
    )


def ask(engine: SnmpEngine, port: int, who: User, timeout_s: float = 5.0) -> SnmpDevice:
    return engine.device("127.0.0.1", port, who, timeout_s=timeout_s)


@pytest.mark.parametrize(("auth", "priv"), KINDS)
async def test_every_protocol_reads_and_walks(
    auth: str | None, priv: str | None, snmp: SnmpEngine, snmpd: Snmpd
) -> None:
    device = ask(snmp, snmpd.port, user(auth, priv))
    values = await device.get([NAME, UP_TIME, "1.3.6.1.4.1.99.1.0"])
    assert isinstance(values[NAME], bytes)
    assert isinstance(values[UP_TIME], int)
    assert values["1.3.6.1.4.1.99.1.0"] is None
    rows = (await device.walk([SYSTEM], deadline_s=20))[SYSTEM]
    assert rows["1.0"] == values[NAME]


@pytest.mark.parametrize(
    ("who", "reason", "words"),
    [
        (user("sha", "aes", name="nobody"), "unknown_user", "does not know this user"),
        (user("sha", None, auth="wrong-password"), "auth_failed", "authentication password or protocol is wrong"),
        (user("sha256", None, name=name_of("sha", None)), "auth_failed", "authentication password or protocol"),
        (user("sha", "aes", auth="wrong-password"), "auth_failed", "authentication password or protocol is wrong"),
        (user("sha", "aes", priv="wrong-password"), "decryption", "privacy password or protocol is wrong"),
        (user("sha", "des", name=name_of("sha", "aes")), "decryption", "privacy password or protocol is wrong"),
        (user("sha", "aes", name=name_of("sha", None)), "security_level", "no authentication or privacy of this kind"),
        (user("sha", None, name=name_of("sha", "aes")), "auth", "does not allow these credentials"),
    ],
)
async def test_wrong_credentials_are_named_and_not_shown(
    who: User, reason: str, words: str, snmp: SnmpEngine, snmpd: Snmpd, caplog: pytest.LogCaptureFixture
) -> None:
    """F75: neither the errors nor a debugging log hold a password or a prefix of it."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DeviceError, match=words) as raised:
        await ask(snmp, snmpd.port, who, timeout_s=1.0).get([NAME])
    assert raised.value.reason == reason
    assert reason in CREDENTIALS_REASONS
    shown = f"{raised.value!r} {who!r} {who.auth!r} {who.priv!r} {caplog.text}"
    assert not [secret for secret in ("wrong-", AUTH_PASSWORD[:6], PRIV_PASSWORD[:6]) if secret in shown]


async def test_two_devices_may_know_one_user_name_with_different_passwords(snmp: SnmpEngine, snmpd: Snmpd) -> None:
    other_password = "another-6Ty1"
    with (
        Snmpd([("monitor", "sha", "aes")]) as first,
        Snmpd([("monitor", "sha", "aes")], auth_password=other_password) as second,
    ):
        one = ask(snmp, first.port, user("sha", "aes", name="monitor"))
        two = ask(snmp, second.port, user("sha", "aes", name="monitor", auth=other_password))
        for device in (one, two, one, two):
            assert (await device.get([NAME]))[NAME] is not None
    assert len(snmp._more) == 1, "an engine more, and only for that"


@pytest.mark.parametrize("same_engine_id", [False, True])
async def test_a_device_that_returns_as_another_engine_or_rebooted_is_read_again(
    same_engine_id: bool, snmp: SnmpEngine
) -> None:
    """A swapped management card: the peer's engine is discovered anew after two time-outs."""
    port, users = free_udp_port(), [("monitor", "sha", "aes")]
    with Snmpd(users, port=port, engine_id="80001f8801aaaaaaaa"):
        device = ask(snmp, port, user("sha", "aes", name="monitor"))
        await device.get([NAME])
    device.timeout_s = 0.5
    engine_id = "80001f8801aaaaaaaa" if same_engine_id else "80001f8801bbbbbbbb"
    with Snmpd(users, port=port, engine_id=engine_id):
        outcomes = []
        for _ in range(4):
            try:
                await device.get([NAME])
                outcomes.append(True)
            except DeviceTimeoutError:
                outcomes.append(False)
            device.timeout_s = 5.0 if len(outcomes) >= 2 else 0.5
    assert outcomes[2:] == [True, True]


async def test_a_device_that_is_off_costs_no_discovery_after_the_first(snmp: SnmpEngine) -> None:
    port = free_udp_port()
    with Snmpd([("monitor", "sha", None)], port=port):
        device = ask(snmp, port, user("sha", None, name="monitor"))
        await device.get([NAME])
    device.timeout_s = 0.2
    for _ in range(4):
        with pytest.raises(DeviceTimeoutError, match="SNMPv3 user"):
            await device.get([NAME])
    assert snmp._engine is not None
    assert not snmp._engine.knows_peer(("127.0.0.1", port))


async def test_a_context_is_asked_for(snmp: SnmpEngine) -> None:
    """snmpd hands one context on to another agent."""
    oid = "1.3.6.1.4.1.99.1.0"
    with Agent({(1, 3, 6, 1, 4, 1, 99, 1, 0): Typed((INTEGER, 7))}) as behind:
        proxy = f"proxy -Cn rack -v 2c -c public 127.0.0.1:{behind.port} .1.3.6.1.4.1.99"
        with Snmpd([("monitor", "sha", "aes")], more=proxy) as server:
            seen = {}
            for context in ("", "rack"):
                who = User("monitor", auth=("sha", AUTH_PASSWORD), priv=("aes", PRIV_PASSWORD), context=context)
                seen[context] = (await ask(snmp, server.port, who).get([oid]))[oid]
    assert seen == {"": None, "rack": 7}


async def test_privacy_without_its_package_says_what_to_install(
    snmp: SnmpEngine, snmpd: Snmpd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pysnmp_engine.des, "PysnmpCryptoError", True)
    with pytest.raises(NotSupportedError, match=r"pip install 'nodewarden\[snmpv3\]'"):
        await ask(snmp, snmpd.port, user("sha", "aes")).get([NAME])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: User("", auth=("sha", AUTH_PASSWORD)), "1 to 32 bytes"),
        (lambda: User("u", priv=("aes", PRIV_PASSWORD)), "only with authentication"),
        (lambda: User("u", auth=("sha", "short12")), "shorter than 8"),
        (lambda: User("u", auth=("sha3", AUTH_PASSWORD)), "allowed: md5, sha, sha224"),  # type: ignore[arg-type]
    ],
)
def test_impossible_users_are_refused_with_what_is_allowed(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


async def test_the_loop_goes_on_while_passwords_are_hashed(snmp: SnmpEngine, snmpd: Snmpd) -> None:
    """F38: hashing a megabyte per password happens in a thread, and no file is read later."""
    gaps: list[float] = []

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(0.005)
            gaps.append(loop.time() - before_s)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(ask(snmp, snmpd.port, user(*kind), 20).get([NAME]) for kind in KINDS[1:7]))
    watcher.cancel()
    assert len(gaps) >= 3
