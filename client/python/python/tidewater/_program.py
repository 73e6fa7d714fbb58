"""Path of the programs that the package contains."""

import os
import pathlib
import shutil
import sysconfig


def find(name="tidewater"):
    """The path of a program: of this installation, or of PATH where the package was built without programs."""
    schemes = [sysconfig.get_default_scheme() if hasattr(sysconfig, "get_default_scheme") else None, f"{os.name}_user"]
    folders = [sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts") for scheme in schemes]
    # pip install --target has them beside the package.
    folders.append(str(pathlib.Path(__file__).resolve().parent.parent / "bin"))
    for folder in folders:
        found = pathlib.Path(folder) / name
        if found.is_file() and os.access(found, os.X_OK):
            return str(found)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"{name}: no such program in {', '.join(folders)} or PATH; install a wheel with programs "
            "(scripts/build-wheel.sh), or the programs by scripts/install.sh"
        )
    return found
