"""The commands, by topic. A file is imported when one of its commands is called."""
