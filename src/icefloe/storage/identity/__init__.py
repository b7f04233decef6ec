"""Who we are to a storage service: credentials."""
