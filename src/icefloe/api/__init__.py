"""The public classes. Each method is a docstring and a call of an operation.

- `repository`, `versions`, `maintenance`, `health`: `Repository`, by topic
- `session`: `Session` and `ForkSession`
- `values`, `maintenance_values`, `enums`: what methods return and take
- `arguments`: the check of public arguments
- `handles`: one repository through a blocking and an event-loop driver
- `migration`, `open_store`, `addresses`: functions beside the classes; a repository as one text
- `chunk_map`, `ancestry_graph`: pictures
- `generated`: the `x_async` twins, written by `tools/make_async_twins.py`
"""
