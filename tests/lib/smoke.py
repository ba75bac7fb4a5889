"""What an installation without torch must be able to do; `make pythons` runs this under every Python at hand."""

import platform
import subprocess
import sys

import halocast as hc

HALOCAST = [sys.executable, "-m", "halocast"]
FAST = ["--set", "graph.dataset=reddit", "--set", "cluster.gpus=2"]


def said(*args: str, code: int = 0) -> str:
    done = subprocess.run([*HALOCAST, *args], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def main() -> None:
    assert "torch" not in sys.modules
    prediction = hc.predict(hc.Scenario.load("demo", "graph.nodes=2000", "cluster.gpus=2"))
    assert prediction.summary.epoch_s > 0
    assert "vanilla" in said("simulate", *FAST)
    assert "report:" in said("compare", *FAST, "--methods", "vanilla,pipegcn", "--scaling", "0")
    if "torch" not in sys.modules and not _has_torch():
        refused = said("run", code=1)
        assert "halocast[run]" in refused, refused
    print(f"Python {platform.python_version()}, halocast {hc.__version__}: {prediction}")


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


if __name__ == "__main__":
    main()
