"""The owner's pages: rendered on the server, with a little JavaScript of our own for what is live."""
