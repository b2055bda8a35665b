"""The HTTP face of the control plane: owner, admin, worker and host APIs. The only package of the server with status codes."""
