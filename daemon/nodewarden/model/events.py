"""What the journal may say: past tense, subject first, `gpu_capped`, `pdu_lost`."""

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `code` is stable; `uuid` names the GPU where there is one; `text` is for people."""

    code: str
    uuid: str | None
    text: str
