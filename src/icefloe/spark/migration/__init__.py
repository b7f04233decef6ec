"""Migrations of large repositories: tasks convert manifests and copy chunks."""
