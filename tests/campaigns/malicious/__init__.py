"""Files as a stranger might send them, and a check that nothing happens but a message."""
