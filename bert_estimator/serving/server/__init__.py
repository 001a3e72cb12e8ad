"""The server `bert-serve`: models answer over HTTP, and on a page in a browser."""
