"""What others may ask of the agent: the verbs of control.sock and the HTTP pages. No hardware, no decisions."""
