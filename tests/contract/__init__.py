"""What every storage must do, on every kind of storage."""
