"""Conditions that people are told about, and the engine that evaluates them on the node, with no Prometheus near."""

from nodewarden_alerts.conditions import CONDITIONS, Facts, Problem
from nodewarden_alerts.engine import Change, ConditionEngine, advice_of, exit_code_of, health_of

__all__ = ["CONDITIONS", "Change", "ConditionEngine", "Facts", "Problem", "advice_of", "exit_code_of", "health_of"]
