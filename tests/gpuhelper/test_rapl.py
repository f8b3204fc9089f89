"""The verb `rapl`: energy counters of the processors, through the real helper process."""

import os

from gpuhelper.rig import Rig
from nodewarden.gpuhelper import wire
from support.host_tree import HostTree
from support.wait import wait_for


def ask(rig: Rig) -> wire.RaplReply:
    with rig.peer() as peer:
        reply = peer.reply_to(peer.send(wire.Rapl(id=peer.next_id())))
    assert isinstance(reply, wire.RaplReply)
    return reply


def test_the_helper_reads_what_only_root_may_and_at_most_once_a_second(rig: Rig) -> None:
    tree = HostTree(rig.host_root)
    folder = tree.zone("intel-rapl:0", "package-0", 240422366267)
    tree.zone("intel-rapl:0:0", "dram", 118821284256)
    rig.start()
    reply = ask(rig)
    assert [(zone.zone, zone.name, zone.energy_uj, zone.range_uj) for zone in reply.zones] == [
        ("intel-rapl:0", "package-0", 240422366267, 262143328850),
        ("intel-rapl:0:0", "dram", 118821284256, 262143328850),
    ]
    tree.write(f"{folder}/energy_uj", 240422366999)
    later = wait_for(lambda: (new := ask(rig)).taken_at_s > reply.taken_at_s and new, 10, "a new reading")
    assert later.zones[0].energy_uj == 240422366999
    assert later.taken_at_s - reply.taken_at_s >= 1.0


def test_a_machine_without_counters_has_no_zones(rig: Rig) -> None:
    """F71: a virtual machine, or a processor without RAPL."""
    rig.start()
    assert ask(rig).zones == []


def test_a_counter_that_hangs_is_told_as_busy_and_holds_up_no_gpu(rig: Rig) -> None:
    tree = HostTree(rig.host_root)
    folder = tree.zone("intel-rapl:0", "package-0", 1)
    tree.remove(f"{folder}/energy_uj")
    os.mkfifo(tree.path(f"{folder}/energy_uj"))  # to open it hangs
    rig.start()
    with rig.peer() as peer:
        peer.send(wire.Rapl(id=peer.next_id()))
        refused = peer.reply_to(peer.send(wire.Rapl(id=peer.next_id())))
        assert (refused.code, "has not come back" in refused.text) == ("busy", True)
        uuid = rig.standin.gpus[0].uuid
        assert isinstance(peer.reply_to(peer.send(wire.ReadFast(id=peer.next_id(), uuids=[uuid]))), wire.FastReply)
