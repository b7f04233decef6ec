"""From descriptions of sources to the plan of an ingest. Nothing is read or written here.

- `planner`, `plan`: the way from descriptions to an `IngestPlan`, and its parts
- `axes`, `file_boxes`, `agreement`: where files are, whether they agree
"""
