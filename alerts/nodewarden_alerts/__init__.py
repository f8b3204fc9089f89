"""Conditions: what is wrong on the node, as a table and as an engine that evaluates it on the snapshot."""
