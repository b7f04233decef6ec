"""Keys and bytes: object stores, directories and memory, with conditional writes.

Knows nothing about the format. What people call is re-exported by `icefloe`.

- `spec`, `constructors`, `urls`, `locations`: `Storage`, and where a repository is
- `driver`, `run`: what a driver promises; finishing a coroutine; what survives `os.fork`
- `memory`, `local`, `directory`, `remote`, `conditional`, `cached`: the drivers
- `client`, `calls`, `signing`: obstore clients, calls in both flavours, sign-in
- `external`, `web`: reading parts of objects that belong to others
"""
