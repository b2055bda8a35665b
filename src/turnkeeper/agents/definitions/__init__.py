"""Ready-made agent definitions, one TOML file each, for `turnkeeper agents add` and for a first start."""

from importlib import resources


def texts() -> dict[str, str]:
    """The TOML text of every ready-made definition by its agent's name, the scripted agent first."""
    files = [file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")]
    names = sorted((file.name.removesuffix(".toml") for file in files), key=lambda name: (name != "scripted", name))
    return {name: resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8") for name in names}
