"""What the CF conventions say about values: times."""
