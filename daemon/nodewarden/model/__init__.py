"""Frozen data that flows through the agent: readings, snapshot, limits, setpoints, events. No I/O, no clock."""
