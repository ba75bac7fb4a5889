"""Prints the answer of a report of `halocast converge --out DIR`: python benchmarks/answer.py DIR/answer.json."""

import json
import sys
import textwrap
from pathlib import Path

WIDTH = 100


def main() -> None:
    lines = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["answer"]
    for line in lines:
        print(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


if __name__ == "__main__":
    main()
