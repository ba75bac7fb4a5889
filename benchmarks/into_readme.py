"""Puts what a command printed (standard input) into the README, between the markers of the given name."""

import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    begin, end = f"<!-- {sys.argv[1]} -->\n", f"<!-- /{sys.argv[1]} -->\n"
    before, _, rest = README.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"error: README.md has no markers {begin.strip()} ... {end.strip()}")
    README.write_text(f"{before}{begin}```\n{sys.stdin.read().rstrip()}\n```\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
