"""Official Icechunk and icefloe at work on one repository."""
