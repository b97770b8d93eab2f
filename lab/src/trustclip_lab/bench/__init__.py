"""What a GPU settles, and what measurements of a head share."""
