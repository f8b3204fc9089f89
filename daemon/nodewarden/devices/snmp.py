"""The one door to SNMP: read a few objects or walk columns of a device, with a deadline, never writing anything.

One engine for the process, one request in flight per device. Errors are `DeviceError` with the reasons "timeout",
"unreachable", "bad_answer", or one of `CREDENTIALS_REASONS`. No secret is in any error, log line or repr. pysnmp is
imported by `SnmpEngine.warm_up`, so a node without a PDU never pays for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from nodewarden.devices.snmp_access import Community, Credentials
from nodewarden.devices.snmp_link import Link, Value, load_pysnmp
from nodewarden.errors import DeviceError, DeviceTimeoutError

__all__ = ["MAX_OIDS", "Community", "Rows", "SnmpDevice", "SnmpEngine", "Value"]

Rows = dict[str, Value]  # index below the column, dotted, and its value

MAX_OIDS = 12  # per GET: what old agents still answer in one datagram
_MAX_REPETITIONS = 24
_MAX_VARBINDS = 96  # per GETBULK over all columns, about 3 KB: few agents send more
_MAX_ROWS = 2048

_TOO_BIG, _NO_SUCH_NAME, _GEN_ERR, _NO_ACCESS, _AUTHORIZATION_ERROR = 1, 2, 5, 6, 16


class SnmpEngine:
    """SNMP for this process, on one event loop. Reused for every device; closed at the end."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._more: list[Any] = []  # one for each v3 user whose name is taken by another with other secrets
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()

    async def warm_up(self) -> None:
        """Import pysnmp and build its engine, in a thread, before the loops have deadlines. Later calls cost nothing.

        A second event loop in one process gets an engine of its own; the first one's sockets are closed.
        """
        loop = asyncio.get_running_loop()
        if self._engine is not None and self._loop is loop:
            return
        if self._loop is not loop:
            self._starting = asyncio.Lock()
            self._loop = loop
            self._drop()
        async with self._starting:
            if self._engine is None:
                self._engine = await asyncio.to_thread(lambda: load_pysnmp().Engine(loop))

    def device(self, host: str, port: int, credentials: Credentials, *, timeout_s: float = 2.0) -> "SnmpDevice":
        """A device to ask; nothing is sent and no name is looked up yet."""
        return SnmpDevice(self, host, port, credentials, timeout_s=timeout_s)

    async def raw(self, credentials: Credentials) -> Any:
        """The running pysnmp engine for these credentials (for `Link`)."""
        await self.warm_up()
        if isinstance(credentials, Community) or self._engine.fits(credentials):
            return self._engine
        async with self._starting:
            for engine in self._more:
                if engine.fits(credentials):
                    return engine
            loop = self._loop
            self._more.append(await asyncio.to_thread(lambda: load_pysnmp().Engine(loop)))
            return self._more[-1]

    async def close(self) -> None:
        """Close the sockets and timers. The engine may be used again afterwards."""
        self._drop()

    def _drop(self) -> None:
        for engine in (self._engine, *self._more):
            if engine is not None:
                engine.close()
        self._engine = None
        self._more.clear()


class SnmpDevice:
    """One device at one address."""

    def __init__(
        self, engine: SnmpEngine, host: str, port: int, credentials: Credentials, *, timeout_s: float = 2.0
    ) -> None:
        self.host, self.port = host, port
        self._link = Link(engine, host, port, credentials, timeout_s)
        self._is_v1 = credentials.version == "1"
        self._lock = asyncio.Lock()
        self._repetitions = _MAX_REPETITIONS
        self._typed = False

    def __repr__(self) -> str:
        return f"SnmpDevice({self.host}:{self.port})"

    @property
    def latency_s(self) -> float | None:
        """How long the last answer took, None before the first."""
        return self._link.latency_s

    @property
    def timeout_s(self) -> float:
        """Seconds that one answer may take."""
        return self._link.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        self._link.timeout_s = timeout_s

    async def get(self, oids: Sequence[str], *, deadline_s: float | None = None) -> dict[str, Value]:
        """Read up to 12 objects. One that the device does not have is None, also with v1.

        Args:
            oids: dotted, with their index.
            deadline_s: for all of it, waiting for an earlier request to this device included; default `timeout_s`,
                four times that for the first contact with a v3 device.

        Raises:
            DeviceError: with reason "timeout", "unreachable", "bad_answer" or one of `CREDENTIALS_REASONS`.
        """
        if not 0 < len(oids) <= MAX_OIDS:
            raise ValueError(f"a GET of {len(oids)} objects, allowed: 1 to {MAX_OIDS}")
        async with self._within(deadline_s or self._link.first_timeout_s()):
            return await self._get(tuple(oids))

    async def walk(self, columns: Sequence[str], *, deadline_s: float, max_rows: int = _MAX_ROWS) -> dict[str, Rows]:
        """Read whole columns side by side. A column that the device does not have is an empty dict.

        Args:
            columns: dotted, without index.
            deadline_s: for all of it.
            max_rows: of one column; what is beyond is left out.

        Raises:
            DeviceError: as for `get`.
        """
        found: dict[str, Rows] = {}
        async with self._within(deadline_s):
            for start in range(0, len(columns), MAX_OIDS):
                found |= await self._walk(columns[start : start + MAX_OIDS], max_rows)
        return found

    async def walk_types(self, root: str, *, deadline_s: float, max_rows: int) -> list[tuple[str, int, Value]]:
        """Everything below `root` as (oid, type as in a .snmprec file, value); at most `max_rows` objects.

        Raises:
            DeviceError: as for `get`.
        """
        async with self._within(deadline_s):
            self._typed = True
            try:
                found: Any = await self._walk([root], max_rows)
            finally:
                self._typed = False
        return [(f"{root}.{index}", *tagged) for index, tagged in found[root].items() if tagged is not None]

    def forget_address(self) -> None:
        """Look the name up again before the next request: the address behind it may have changed."""
        self._link.forget_address()

    # GET

    async def _get(self, oids: tuple[str, ...]) -> dict[str, Value]:
        status, index, pairs = await self._request("get", oids)
        if status == 0:
            if [name for name, _ in pairs] != list(oids):
                raise self._bad("it answered for other objects than were asked")
            return {name: None if self._is_end(value) else value for name, value in pairs}
        self._refuse_access(status)
        if len(oids) == 1:
            # tooBig for one object cannot be helped; noSuchName and genErr mean that there is no value
            return {oids[0]: None}
        if status == _NO_SUCH_NAME and 0 < index <= len(oids):
            missing = oids[index - 1]
            if index == len(oids) and (value := (await self._get((missing,)))[missing]) is not None:
                # pysnmp makes "the last" of an index that is too large: not that one, then
                return await self._get_halves(oids[:-1]) | {missing: value}
            rest = tuple(oid for oid in oids if oid != missing)
            return {missing: None} | (await self._get(rest) if rest else {})
        return await self._get_halves(oids)

    async def _get_halves(self, oids: tuple[str, ...]) -> dict[str, Value]:
        half = len(oids) // 2
        return {
            oid: value for part in (oids[:half], oids[half:]) if part for oid, value in (await self._get(part)).items()
        }

    # walk

    async def _walk(self, columns: Sequence[str], max_rows: int) -> dict[str, Rows]:
        found: dict[str, Rows] = {column: {} for column in columns}
        last = dict.fromkeys(columns, "")  # newest index read of each column that goes on
        while last:
            asked = [f"{column}.{index}" if index else column for column, index in last.items()]
            order = list(last)
            answer = await self._next(asked, order, last)
            moved = False
            for position, (name, value) in enumerate(answer):
                column = order[position % len(order)]
                if column not in last:
                    continue
                if self._is_end(value) or not name.startswith(column + "."):
                    del last[column]
                    moved = True
                    continue
                index = name[len(column) + 1 :]
                if last[column] and not _after(index, last[column]):
                    raise self._bad(f"a walk of {column} does not move on: {index} came after {last[column]}")
                found[column][index] = value
                last[column] = index
                moved = True
                if len(found[column]) >= max_rows:
                    del last[column]
            if not moved:
                raise self._bad("it answered a walk with nothing")
        return found

    async def _next(self, asked: list[str], order: list[str], last: dict[str, str]) -> list[tuple[str, Value]]:
        """One step of a walk: GETBULK with as many repetitions as this device stands, or GETNEXT."""
        while not self._is_v1 and self._repetitions > 1:
            repetitions = max(1, min(self._repetitions, _MAX_VARBINDS // len(asked)))
            try:
                status, _, pairs = await self._request("bulk", asked, repetitions)
            except DeviceTimeoutError:
                # some agents stay silent when the answer would not fit into one datagram; others are just away
                if repetitions == 1 or self.latency_s is None:
                    raise
                self._repetitions = repetitions // 2
                continue
            self._refuse_access(status)
            if status == 0 and pairs:
                if len(pairs) < len(asked) * repetitions and len(pairs) < len(asked):
                    self._repetitions = max(2, self._repetitions // 2)  # cut short; go on from where it ended
                return pairs
            self._repetitions = repetitions // 2
        if len(asked) > 1 and self._is_v1:
            return await self._next_each(asked, order, last)
        status, _, pairs = await self._request("next", asked)
        self._refuse_access(status)
        if status == _NO_SUCH_NAME:
            return [(oid, self._end()) for oid in asked]
        if status == 0:
            return pairs
        if len(asked) > 1:
            return await self._next_each(asked, order, last)
        raise self._bad(f"it answered a walk with error status {status}")

    async def _next_each(self, asked: list[str], order: list[str], last: dict[str, str]) -> list[tuple[str, Value]]:
        """GETNEXT of several columns; with v1 one column that has ended fails the whole request."""
        status, index, pairs = await self._request("next", asked)
        if status == 0:
            return pairs
        self._refuse_access(status)
        if status == _NO_SUCH_NAME and 0 < index <= len(asked):
            ended = order[index - 1]
            rest_asked = [oid for position, oid in enumerate(asked) if position != index - 1]
            rest_order = [column for column in order if column != ended]
            rest = await self._next_each(rest_asked, rest_order, last) if rest_asked else []
            return [*rest[: index - 1], (ended, self._end()), *rest[index - 1 :]]
        both: list[tuple[str, Value]] = []
        for oid in asked:
            status, _, pairs = await self._request("next", [oid])
            both += pairs[:1] if status == 0 and pairs else [(oid, self._end())]
        return both

    # one request

    async def _request(
        self, kind: str, oids: Sequence[str], repetitions: int = 0
    ) -> tuple[int, int, list[tuple[str, Value]]]:
        return await self._link.request(kind, oids, repetitions, typed=self._typed)

    @contextlib.asynccontextmanager
    async def _within(self, deadline_s: float) -> AsyncIterator[None]:
        """One operation at a time on this device, all of it within a deadline."""
        await self._link.engine.warm_up()
        garbage = self._link.garbage()
        try:
            async with asyncio.timeout(deadline_s), self._lock:
                yield
        except TimeoutError:
            raise self._link.no_answer(garbage, deadline_s) from None

    def _is_end(self, value: object) -> bool:
        return value is self._end()

    def _end(self) -> Any:
        return load_pysnmp().END

    def _refuse_access(self, status: int) -> None:
        if status in {_NO_ACCESS, _AUTHORIZATION_ERROR}:
            raise DeviceError(f"{self.host}:{self.port} does not allow these credentials to read this", "auth")

    def _bad(self, why: str) -> DeviceError:
        return self._link.bad(why)


def _after(index: str, before: str) -> bool:
    """True when `index` comes after `before` in the order of SNMP."""
    return [int(part) for part in index.split(".")] > [int(part) for part in before.split(".")]
