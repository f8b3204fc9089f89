"""Supplies that share a name, and a group that lost a member: what the conditions make of them."""

import pytest

from nodewarden.model.bmc import Redundancy
from nodewarden_alerts import server

from .test_conditions import NOW_S
from .test_server import supply, told


def test_of_supplies_with_one_name_only_the_failed_one_is_told() -> None:
    """iLO calls each HpeServerPowerSupply."""
    psus = tuple(
        supply(name="HpeServerPowerSupply", id=str(n), health="Critical" if n == 2 else "OK") for n in range(4)
    )
    assert [each.key for each in server.supply_failed(told(psus=psus), NOW_S)] == ["2"]


@pytest.mark.parametrize(
    ("group", "is_lost"),
    [
        (Redundancy(name="PSUs", members=1, health="Critical", state="Enabled"), True),  # the other one was pulled
        (Redundancy(name="PSUs", members=2, health="Warning"), True),
        (Redundancy(name="PSUs", members=1, health="OK"), False),  # a machine with one supply
        (Redundancy(name="PSUs", members=0, health="Critical", state="Disabled"), False),  # not set up
        (Redundancy(name="Fans", of="fans", members=4, health="Critical"), False),
    ],
)
def test_a_group_that_is_not_whole_by_its_own_word_counts_with_whatever_members(
    group: Redundancy, is_lost: bool
) -> None:
    seen = told(psus=(supply(),), redundancy=(group,))
    assert bool(list(server.redundancy_lost(seen, NOW_S))) is is_lost
