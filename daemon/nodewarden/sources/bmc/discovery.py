"""One walk over a BMC by Redfish: what `nodectl bmc discover` shows."""

from collections.abc import Callable
from typing import Any

from nodewarden.clock import BootClock
from nodewarden.devices.redfish import Access, RedfishClient
from nodewarden.model.bmc import BmcSnapshot
from nodewarden.sources.bmc.decode import decode
from nodewarden.sources.bmc.tree import Tree
from nodewarden.sources.bmc.walk import Walk


async def discover(
    url: str,
    user: str,
    password: str,
    *,
    ca: str,
    fingerprint: str,
    timeout_s: float,
    on_progress: Callable[[str], None] = lambda _: None,
) -> BmcSnapshot:
    """Ask a BMC for all it has; tells how far it is, because a large one takes minutes.

    Raises:
        ValueError: for a URL or fingerprint that cannot be one.
        DeviceError: where it does not answer or refuses.
    """
    access = Access(url, user, password, ca=ca, fingerprint=fingerprint)
    async with RedfishClient(access, timeout_s=timeout_s) as client:
        asked = 0

        async def get(path: str) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            if asked % 50 == 0:
                on_progress(f"{asked} resources read")
            return await client.get(path)

        def slow(tree: Tree) -> None:
            on_progress(f"{len(tree)} resources read; single sensors come now")

        tree = await Walk(get, BootClock(), on_slow=slow).run()
    return decode(tree)
