"""Rack PDUs over SNMP: one engine, one table per vendor, a registry that finds the table for a device."""
