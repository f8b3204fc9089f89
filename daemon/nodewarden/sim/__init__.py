"""The digital twin: a node's heat and power, simulated devices in front of it, scenarios. Never in production."""
