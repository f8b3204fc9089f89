"""The server's management controller: Redfish, IPMI, SNMP."""
