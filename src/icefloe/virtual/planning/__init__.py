"""From descriptions of sources to the plan of an ingest. Nothing is read or written here."""
