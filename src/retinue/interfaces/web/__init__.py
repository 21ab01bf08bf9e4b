"""The web page and the HTTP API: runs to look at in a browser, and commands to them."""
