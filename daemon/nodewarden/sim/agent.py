"""The real agent on the twin's clock: `python -m nodewarden.sim.agent SPEED ORIGIN_S [the agent's own arguments]`.

Nothing else is different; the agent learns of the GPUs through gpu.sock, of the PDU through SNMP, of the job through
job.sock.
"""

import sys

from nodewarden.agent import main as agent_main
from nodewarden.clock import BootClock, Clock, ScaledClock


def main() -> int:
    """Run the agent."""
    speed, origin_s = float(sys.argv[1]), float(sys.argv[2])
    clock: Clock = BootClock() if speed == 1.0 else ScaledClock(speed, origin_s)
    return agent_main(sys.argv[3:], clock=clock)


if __name__ == "__main__":
    sys.exit(main())
