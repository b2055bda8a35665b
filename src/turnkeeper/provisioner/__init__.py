"""The provisioner: creates, finds, proxies and deletes sandboxes, and owns the owners' storage (K-01)."""
