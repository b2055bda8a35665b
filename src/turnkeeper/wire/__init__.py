"""Messages of the worker, host, sandbox, provisioner and public protocols, one module each. Nothing here does anything."""
