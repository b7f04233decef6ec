"""What a repository knows about itself, as rows."""
