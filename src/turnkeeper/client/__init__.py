"""Typed HTTP clients of the control plane, the provisioner and the sandbox manager, over one shared base (`http`)."""
