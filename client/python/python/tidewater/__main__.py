"""python -m tidewater: the program tidewater of this installation."""

import os
import sys

from ._program import find


def main():
    try:
        program = find()
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    os.execv(program, ["tidewater", *sys.argv[1:]])


if __name__ == "__main__":
    main()
