"""Which agent owns the helper, whether it is still there, and what it wants to happen if it is not.

    nobody ──hello──▶ adopted ──goodbye──▶ leaving (caps stay 20 s for the next hello, then min(prior, keep_w))
                         │
                         └──nothing heard for 3 s──▶ silent (armed: the fail-safe; caps hold, unprotected ones expire)

A hello from anywhere but "adopted by somebody else" adopts.
"""

import threading

from nodewarden.clock import Clock
from nodewarden.errors import HelperError
from nodewarden.gpuhelper.book import Book
from nodewarden.gpuhelper.ledger import AGENT_KEY, Record
from nodewarden.gpuhelper.peers import Peer
from nodewarden.gpuhelper.wire import Hello, LedgerEntry, Reply

SILENCE_S = 3.0
GOODBYE_S = 20.0
BY_HAND_S = 600.0
"""A helper that was not started as a service ends after this long without an agent."""


class Adoption:
    """The one agent. Kept in the ledger as well, so that a restarted helper waits for it as after a silence."""

    def __init__(self, book: Book, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._lock = threading.Lock()
        self._peer: Peer | None = None
        self._heard_at_s = clock.now_s()
        self._left_at_s: float | None = None
        self._silence_answered = True  # nobody was ever here
        self._goodbye_answered = True
        self.armed = False
        self.failsafe_w: float | None = None

    def recall(self) -> None:
        """After a restart of the helper: wait for the agent of before."""
        record = self._book.get(AGENT_KEY)
        if record is None:
            return
        self.armed = record.armed
        self.failsafe_w = record.entry.keep_w
        self._silence_answered = False
        if record.entry.state == "kept":
            self._left_at_s = self._clock.now_s()
            self._goodbye_answered = False

    def hello(self, peer: Peer, hello: Hello) -> None:
        """Adopt, renew or release. Raises HelperError "foreign" when another agent is adopted."""
        with self._lock:
            owner = self._peer
            # pid 0: a process of another pid namespace, of which nothing is known
            same_process = owner is not None and owner.pid == peer.pid != 0
            if owner is not None and owner is not peer and not owner.closed and not same_process:
                raise HelperError(f"this helper serves another agent, pid {owner.pid}", "foreign")
            now_s = self._clock.now_s()
            if hello.leaving:
                self._peer = None
                peer.adopted = False
                self._left_at_s, self._goodbye_answered = now_s, False
            else:
                if owner is not None and owner is not peer:
                    owner.adopted = False
                    owner.close()
                self._peer = peer
                peer.adopted = True
                self._left_at_s, self._goodbye_answered = None, True
            self.armed, self.failsafe_w = hello.armed, hello.failsafe_w
            self._heard_at_s, self._silence_answered = now_s, False
            note = LedgerEntry(
                uuid=AGENT_KEY,
                prior_w=0.0,
                w=0.0,
                keep_w=hello.failsafe_w,
                owner_uid=peer.uid,
                written_at_s=now_s,
                state="kept" if hello.leaving else "owned",
            )
            self._book.put_anyway(AGENT_KEY, Record(entry=note, armed=hello.armed))

    def heard(self, peer: Peer) -> None:
        """Any request counts as a sign of life; after a silence the agent is back by this alone."""
        if peer is self._peer:
            self._heard_at_s = self._clock.now_s()
            self._silence_answered = False

    def gone(self, peer: Peer) -> None:
        """The connection ended: silence from now, unless a goodbye came first."""
        with self._lock:
            if peer is self._peer:
                self._peer = None

    def owns(self, peer: Peer) -> bool:
        """Whether this connection is the adopted agent's."""
        return peer is self._peer

    def tell(self, reply: Reply) -> None:
        """Say something unasked to the adopted agent, if there is one."""
        peer = self._peer
        if peer is not None:
            peer.send(reply)

    @property
    def pid(self) -> int | None:
        """Of the adopted agent."""
        peer = self._peer
        return None if peer is None else peer.pid

    @property
    def away(self) -> bool:
        """No agent, or one that said goodbye or fell silent."""
        return self._peer is None or self._clock.now_s() - self._heard_at_s > SILENCE_S

    def away_for_s(self) -> float:
        """How long nothing was heard."""
        return self._clock.now_s() - self._heard_at_s if self.away else 0.0

    def silence_is_due(self) -> bool:
        """True once per silence, unless it said goodbye."""
        if self._silence_answered or self._left_at_s is not None:
            return False
        if self._clock.now_s() - self._heard_at_s <= SILENCE_S:
            return False
        self._silence_answered = True
        return True

    def goodbye_is_due(self) -> bool:
        """True once, when nobody came back after a goodbye."""
        left_at_s = self._left_at_s
        if self._goodbye_answered or left_at_s is None or self._clock.now_s() - left_at_s < GOODBYE_S:
            return False
        self._goodbye_answered = True
        return True

    def next_deadline_s(self) -> float | None:
        """When `silence_is_due` or `goodbye_is_due` may next be true."""
        if self._left_at_s is not None:
            return None if self._goodbye_answered else self._left_at_s + GOODBYE_S
        return None if self._silence_answered else self._heard_at_s + SILENCE_S
