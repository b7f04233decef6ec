"""The commands, by topic; each file is imported when one of its commands is called."""
