"""How people name GPUs: an index, a uuid or its unique beginning, or "all"."""

from nodewarden.api.status import sorted_gpus
from nodewarden.api.view import View
from nodewarden.errors import RefusedError

_SHORTEST_PREFIX = 4


def gpus_named(view: View, name: str) -> list[str]:
    """The uuids that `name` stands for; raises RefusedError with what is known when it is none or not unique."""
    gpus = sorted_gpus(view)
    if not gpus:
        raise RefusedError(f'GPU "{name}" cannot be found: no GPU is known on this node', "unknown_gpu")
    if name == "all":
        return [gpu.uuid for gpu in gpus]
    if name.isascii() and name.isdigit():
        found = [gpu.uuid for gpu in gpus if gpu.index == int(name[:9])]
    else:
        wanted = name.lower()
        found = [gpu.uuid for gpu in gpus if gpu.uuid.lower() == wanted]
        if not found and len(wanted) >= _SHORTEST_PREFIX:
            found = [
                g.uuid for g in gpus if g.uuid.lower().removeprefix("gpu-").startswith(wanted.removeprefix("gpu-"))
            ]
    if len(found) == 1:
        return found
    if found:
        raise RefusedError(f'GPU "{name}" stands for {len(found)} GPUs; give more of the uuid', "unknown_gpu")
    known = ", ".join(str(gpu.index) for gpu in gpus if gpu.index is not None)
    raise RefusedError(f'no GPU "{name}"; allowed: {known}, a uuid, or all', "unknown_gpu")
