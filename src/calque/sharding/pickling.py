"""Makes JAX's devices and meshes picklable, with devices as numbers.

JAX cannot pickle devices, or meshes, shardings and placements, which contain devices.
"""

import copyreg
from typing import Any

import jax
from jax.sharding import Mesh


def install() -> None:
    """Make devices and meshes picklable and copyable (a second call does nothing)."""
    copyreg.pickle(jax.Device, lambda device: (device_of, (device.platform, device.id)))
    copyreg.pickle(Mesh, _reduced)


def device_of(platform: str, number: int) -> Any:
    """Returns a pickled device.

    Raises:
        RuntimeError: there is no such device.
    """
    found = [device for device in jax.devices(platform) if device.id == number]
    if not found:
        raise RuntimeError(
            f"the pickled mesh uses {platform} device {number}, but JAX has "
            f"{len(jax.devices(platform))} here. Run with as many devices, or pickle sizes and "
            "specs instead of the mesh and create the mesh here"
        )
    return found[0]


def _reduced(mesh: Mesh) -> Any:
    return Mesh, (mesh.devices, mesh.axis_names, mesh.axis_types)
