"""Limits and snapshots from plain dictionaries, for tests and simulations.

The shapes are fixed: limits are
`{gpus: {uuid: {min_w, max_w, prior_w, kind, max_op_c, slowdown_c, shutdown_c, hbm_max_op_c}}, target_margin_c,
node_power_w, outlets: {name: limit_w}, manual: {uuid: {w, expires_s}}, failsafe_w}`; a snapshot is
`{gpus: {uuid: {junction_c, hbm_c, margin_c, power_w, cap_w, utilisation, slow}}, outlets: {name: power_w},
jobs: [{id, gpus, step, steps_per_s, ckpt_s}]}`, where each reading is `{v, t_s}`, `{absent: true}` or
`{failed: reason, t_s}`. A quantity that is not there is `Absent`; keys beside these are ignored, so that a record of
more than the policy knows can be played to it.
"""

from collections.abc import Mapping
from typing import Any, Final

from nodewarden.model.limits import GpuLimits, Limits, ManualCap
from nodewarden.model.readings import Absent, Failed, Reading
from nodewarden.model.snapshot import FAST_QUANTITIES, GpuSnapshot, JobSnapshot, NodeSnapshot, Number, Words

_GPU_WORDS: Final = ("index", "model", "health", "health_since_s", "pci_bus_id")
_KINDS: Final = ("tlimit", "absolute")


def _wrong(key: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{key}: expected {expected}, got {value!r}")


def _mapping(value: object, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(key, "an object", value)
    return value


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number", value)
    return float(value)


def _optional(table: Mapping[str, Any], name: str, key: str, default: float | None = None) -> float | None:
    value = table.get(name)
    return default if value is None else _number(value, f"{key}.{name}")


def _required(table: Mapping[str, Any], name: str, key: str) -> float:
    if table.get(name) is None:
        raise ValueError(f"{key}.{name}: missing, expected a number")
    return _number(table[name], f"{key}.{name}")


def _gpu_limits(value: object, key: str) -> GpuLimits:
    table = _mapping(value, key)
    kind = table.get("kind", "absolute")
    if kind not in _KINDS:
        raise ValueError(f"{key}.kind: expected one of {', '.join(_KINDS)}, got {kind!r}")
    # Offsets to T.Limit 0 where a signed-margin board says nothing; ordinary thresholds for an absolute one.
    max_op_c, slowdown_c, shutdown_c = (0.0, -2.0, -8.0) if kind == "tlimit" else (85.0, 89.0, 92.0)
    if table.get("max_op_c") is not None:
        max_op_c = _number(table["max_op_c"], f"{key}.max_op_c")
    max_w = _required(table, "max_w", key)
    slowdown = _optional(table, "slowdown_c", key, slowdown_c)
    shutdown = _optional(table, "shutdown_c", key, shutdown_c)
    prior = _optional(table, "prior_w", key, max_w)
    assert slowdown is not None
    assert shutdown is not None
    assert prior is not None
    return GpuLimits(
        min_w=_required(table, "min_w", key),
        max_w=max_w,
        prior_w=prior,
        kind=kind,
        max_op_c=max_op_c,
        slowdown_c=slowdown,
        shutdown_c=shutdown,
        hbm_max_op_c=_optional(table, "hbm_max_op_c", key),
    )


def limits_from(plain: Mapping[str, Any]) -> Limits:
    """Limits from plain data.

    Raises:
        ValueError: a key is missing or of the wrong type; the message names it.
    """
    table = _mapping(plain, "limits")
    gpus = {
        uuid: _gpu_limits(value, f"limits.gpus.{uuid}")
        for uuid, value in _mapping(table.get("gpus") or {}, "limits.gpus").items()
    }
    outlets = {
        name: _number(value, f"limits.outlets.{name}")
        for name, value in _mapping(table.get("outlets") or {}, "limits.outlets").items()
    }
    manual: dict[str, ManualCap] = {}
    for uuid, value in _mapping(table.get("manual") or {}, "limits.manual").items():
        key = f"limits.manual.{uuid}"
        entry = _mapping(value, key)
        cause = entry.get("cause", "manual")
        if cause not in {"manual", "lease"}:
            raise ValueError(f"{key}.cause: expected manual or lease, got {cause!r}")
        manual[uuid] = ManualCap(
            w=_required(entry, "w", key), expires_s=_optional(entry, "expires_s", key), cause=cause
        )
    target = _optional(table, "target_margin_c", "limits", 2.0)
    assert target is not None
    return Limits(
        gpus=gpus,
        target_margin_c=target,
        node_power_w=_optional(table, "node_power_w", "limits"),
        outlets=outlets,
        manual=manual,
        failsafe_w=_optional(table, "failsafe_w", "limits"),
    )


def _quantity(value: object, key: str) -> Any:
    if value is None:
        return Absent()
    table = _mapping(value, key)
    if table.get("absent"):
        return Absent()
    if "failed" in table:
        return Failed(str(table["failed"]), _optional(table, "t_s", key, 0.0) or 0.0)
    if "v" not in table:
        raise ValueError(f"{key}: expected v and t_s, or absent, or failed and t_s; got {dict(table)!r}")
    return Reading(table["v"], _required(table, "t_s", key))


def _number_quantity(value: object, key: str) -> Number:
    """A number with its time. What is not a number stays in: it is the policy that must reject it."""
    quantity: Number = _quantity(value, key)
    return quantity


def _words(value: object, key: str) -> Words:
    quantity = _quantity(value, key)
    if isinstance(quantity, Reading):
        words = quantity.value
        if isinstance(words, str) or not isinstance(words, list | tuple | set | frozenset):
            raise _wrong(f"{key}.v", "a list of reasons", words)
        return Reading(tuple(str(word) for word in words), quantity.taken_at_s)
    return quantity  # type: ignore[no-any-return]


def _gpu_snapshot(uuid: str, value: object, key: str) -> GpuSnapshot:
    table = _mapping(value, key)
    fields: dict[str, Any] = {name: _number_quantity(table.get(name), f"{key}.{name}") for name in FAST_QUANTITIES}
    fields.update({name: table[name] for name in _GPU_WORDS if name in table})
    return GpuSnapshot(uuid=uuid, slow=_words(table.get("slow"), f"{key}.slow"), **fields)


def _job(value: object, key: str) -> JobSnapshot:
    table = _mapping(value, key)
    optional = ("step", "steps_per_s", "ckpt_s", "duty", "state", "last_checkpoint_at_s")
    if "id" not in table:
        raise ValueError(f"{key}.id: missing, expected the job's id")
    fields = {}
    for name in optional:
        value = table.get(name)
        if isinstance(value, Mapping):  # said with its time, as readings are
            value = value.get("v")
        if value is not None:
            fields[name] = value
    return JobSnapshot(id=str(table["id"]), gpus=tuple(table.get("gpus") or ()), **fields)


def snapshot_from(plain: Mapping[str, Any]) -> NodeSnapshot:
    """A snapshot from plain data; a quantity that is not given is `Absent`.

    Raises:
        ValueError: a key is of the wrong shape; the message names it.
    """
    table = _mapping(plain, "snapshot")
    gpus = _mapping(table.get("gpus") or {}, "snapshot.gpus")
    outlets = _mapping(table.get("outlets") or {}, "snapshot.outlets")
    taken_at_s = _optional(table, "taken_at_s", "snapshot", 0.0)
    assert taken_at_s is not None
    return NodeSnapshot(
        taken_at_s=taken_at_s,
        gpus={uuid: _gpu_snapshot(uuid, value, f"snapshot.gpus.{uuid}") for uuid, value in gpus.items()},
        outlets={name: _number_quantity(value, f"snapshot.outlets.{name}") for name, value in outlets.items()},
        jobs=tuple(_job(value, f"snapshot.jobs[{i}]") for i, value in enumerate(table.get("jobs") or ())),
    )
