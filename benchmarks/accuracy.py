"""Makes study/accuracy.csv, the error bands that plans quote, from results of `published` and `validate`.

python benchmarks/accuracy.py PUBLISHED.json [VALIDATE.json ...]
"""

import json
import sys
from pathlib import Path

from halocast.base.files import whole_file
from halocast.study.bands import compared_with_published, compared_with_runs, format_bands, make_bands

TARGET = Path(__file__).parents[1] / "study" / "accuracy.csv"


def main() -> None:
    published, *runs = (json.loads(Path(name).read_text(encoding="utf-8"))["rows"] for name in sys.argv[1:])
    compared = [*compared_with_published(published), *(one for rows in runs for one in compared_with_runs(rows))]
    text = format_bands(make_bands(compared))
    with whole_file(TARGET) as path:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    print(text, end="")


if __name__ == "__main__":
    main()
