"""The privileged GPU helper `nodewarden-gpu`: its process, its ledger, and the agent's client of it."""
