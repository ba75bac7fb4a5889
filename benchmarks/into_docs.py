"""Puts what a command printed into the document that has the markers of the given name: `command | into_docs.py NAME`.

`into_docs.py --run NAME` runs the command that stands before the markers: an example and its output stay together.
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def home(name: str) -> tuple[Path, re.Match[str]]:
    """Document with the markers of that name, and where they are; `shown` is what stands between, without its fence."""
    pattern = re.compile(
        rf"<!-- {re.escape(name)} -->\n```\n(?P<shown>.*?)\n```\n<!-- /{re.escape(name)} -->\n", re.DOTALL
    )
    homes = [(path, match) for path in DOCUMENTS for match in pattern.finditer(path.read_text(encoding="utf-8"))]
    if len(homes) != 1:
        raise SystemExit(f"error: {len(homes)} blocks <!-- {name} --> in README.md and docs/: needs to be 1")
    return homes[0]


def put(name: str, text: str) -> None:
    path, block = home(name)
    begin, end = block.span("shown")
    path.write_text(block.string[:begin] + text.rstrip() + block.string[end:], encoding="utf-8")


def command_of(name: str) -> str:
    """Command of the last `sh` block before the markers, on one line."""
    _, block = home(name)
    commands = re.findall(r"```sh\n(.*?)```", block.string[: block.start()], re.DOTALL)
    return " ".join(commands[-1].replace("\\\n", " ").split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--run", action="store_true", help="run the command before the markers")
    args = parser.parse_args()
    if args.run:
        done = subprocess.run(shlex.split(command_of(args.name)), stdout=subprocess.PIPE, text=True, check=True)
        put(args.name, done.stdout)
    else:
        put(args.name, sys.stdin.read())


if __name__ == "__main__":
    main()
