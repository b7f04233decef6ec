"""How objects show themselves: as text, as code that makes them, and as HTML in notebooks."""
