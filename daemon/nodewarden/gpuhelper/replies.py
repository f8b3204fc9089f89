"""Readings on their way to the agent."""

from nodewarden.devices.gpu_library import FastValues, SlowValues
from nodewarden.gpuhelper import wire


def fast_reply(
    uuid: str, request_id: int, taken_at_s: float, read: FastValues, events: list[wire.HelperEvent], news: int
) -> wire.FastReply:
    """A fast reading as the agent gets it."""
    values = {name: wire.Value(value) for name, value in read.values.items()}
    values.update((name, wire.Value(None, reason)) for name, reason in read.missing.items())
    slow_s = {name: wire.Value(value) for name, value in read.slow_s.items()}
    slow_s.update((name, wire.Value(None, reason)) for name, reason in read.slow_s_missing.items())
    return wire.FastReply(
        id=request_id,
        uuid=uuid,
        taken_at_s=taken_at_s,
        values=values,
        slow_bits=read.slow_bits,
        slow_reason=read.slow_reason,
        slow_s=slow_s,
        events=events,
        news=news,
    )


def slow_reply(uuid: str, request_id: int, taken_at_s: float, read: SlowValues) -> wire.SlowReply:
    """A slow reading as the agent gets it."""
    board = wire.WireBoard(**{name: getattr(read.board, name) for name in wire.WireBoard.__struct_fields__})
    return wire.SlowReply(
        id=request_id,
        uuid=uuid,
        taken_at_s=taken_at_s,
        board=board,
        links=[wire.WireLink(link.link, link.active, link.tx_bytes, link.rx_bytes) for link in read.links],
        links_reason=read.links_reason,
        pids=None if read.pids is None else list(read.pids),
        pids_reason=read.pids_reason,
        rare=read.rare,
        more={
            name: [
                wire.Sample(labels, None, given) if isinstance(given, str) else wire.Sample(labels, given)
                for labels, given in values.items()
            ]
            for name, values in read.more.items()
        },
        calls=read.calls,
    )
