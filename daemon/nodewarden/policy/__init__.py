"""Pure policy: (state, snapshot, limits, now_s) -> (state, setpoints, events)."""
