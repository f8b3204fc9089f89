"""What the helper read by itself between two fast readings: temperatures and instant power, up to ten times a second.

Each sample goes into the trailing windows, so that a peak of a tenth of a second is seen. The newest readings are the
fast ones; when a GPU becomes much hotter in between, the helper says so and is asked at once.
"""

from collections.abc import Callable, Iterable

import msgspec

from nodewarden.gpuhelper import wire
from nodewarden.policy.plausibility import accept
from nodewarden.store import SourceRecord

_QUANTITIES = ("junction_c", "hbm_c", "margin_c", "power_instant_w")


class QuickSampling(msgspec.Struct, frozen=True):
    """How often the helper is to sample, and who is told.

    Attributes:
        every_s: seconds between two samples.
        on_reading: told uuid, quantity, CLOCK_BOOTTIME and value of each plausible sample, oldest first.
    """

    every_s: float
    on_reading: Callable[[str, str, float, float], None]

    def take(self, uuid: str, samples: Iterable[wire.QuickSample], record: SourceRecord) -> None:
        """Hand on what one GPU's fast reply brought; what is not plausible is counted."""
        for sample in samples:
            for name in _QUANTITIES:
                value: float | None = getattr(sample, name)
                if value is None:
                    continue
                if accept(name, value):
                    self.on_reading(uuid, name, sample.taken_at_s, value)
                else:
                    record.reject(name)
