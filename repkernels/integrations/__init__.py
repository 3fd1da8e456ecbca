"""Other libraries' models over this library's operations."""
