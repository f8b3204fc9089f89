"""The power feeds (A, B) that the PDUs of this node hang on, put together from their PDUs."""

import msgspec

from nodewarden.model.readings import Absent, Failed, Reading

Number = Reading[float] | Absent | Failed


class FeedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One feed: what it carries, and what it must carry when another feed is lost.

    Attributes:
        name: `feed` of its PDUs in the configuration.
        pdus: names of its PDUs; silent: those of them that do not answer.
        power_w: all its PDUs together; no sum of only some of them is ever given.
        outlets_w: this node's outlets on it together.
        after_loss_w: what this node's outlets on it must carry when another feed is lost (the larger one, of several).
        total_after_loss_w: the same for its PDUs as a whole: the most, as if every load had both feeds.
        rated_w: of its PDUs together, where all are configured.
        lost: True with evidence of lost power, False while it carries or has voltage, None when nobody can tell:
            silence of its PDUs alone is no evidence.
        since_s: since when it is lost; `evidence` says what shows it.
    """

    name: str
    pdus: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    power_w: Number = Absent("not_read")
    outlets_w: Number = Absent("not_read")
    after_loss_w: Number = Absent("no_other_feed")
    total_after_loss_w: Number = Absent("no_other_feed")
    rated_w: float | None = None
    lost: bool | None = None
    since_s: float | None = None
    evidence: str = ""
