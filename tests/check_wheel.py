"""`make wheel-check`: an installed wheel with its core dependencies, used from an empty folder."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import trustclip as tc

SOURCE = Path(__file__).resolve().parents[1] / "src"


def main() -> None:
    assert SOURCE not in Path(tc.__file__).resolve().parents, "this is the checkout, not the wheel"
    extra = [
        name for name in ("tyro", "yaml", "rich", "scipy", "trl") if importlib.util.find_spec(name)
    ]
    assert not extra, f"the core brings {', '.join(extra)}"
    methods = {name: tc.method(name) for name in tc.methods()}
    assert len(methods) == len(list(Path(tc.__file__).parent.glob("methods/[a-z]*.py")))
    low, high = tc.interval("atr", delta=0.07)
    assert (round(float(low), 12), round(float(high), 12)) == (0.67097173825, 1.422216736276)
    print(f"trustclip {tc.__version__}: {len(methods)} methods, atr in [{low:.6f}, {high:.6f}]")
    done = subprocess.run(
        [sys.executable, "-m", "trustclip", "bounds", "atr"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "trustclip[cli]" in done.stderr, (done.returncode, done.stderr)
    print("the command line names the extra it needs:", done.stderr.strip())


if __name__ == "__main__":
    main()
