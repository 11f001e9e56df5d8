"""``python -m skfedcal``."""

from skfedcal.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
