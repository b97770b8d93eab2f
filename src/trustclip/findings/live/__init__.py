"""A run while it trains: recorded, and watched by guards."""
