"""What must hold for every input, tried on inputs made up by hypothesis."""
