"""Draws a data set, trains a small model with random weights on it, and shows its answers before and after.

    python -m vlmtrain.quickstart [SEED [KEY=VALUE…]]     such as: python -m vlmtrain.quickstart 1 training.max_steps=500

All files are in quickstart/ in the working folder. Takes ten to twenty minutes on two cores.
"""

import os
import sys
import sysconfig
from importlib.util import find_spec

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(__doc__)
    if os.path.lexists("quickstart"):
        sys.exit(f"quickstart: {os.path.abspath('quickstart')} exists; move it away, or run in another folder")
    if missing := [name for name, module in (("pillow", "PIL"), ("numpy", "numpy")) if find_spec(module) is None]:
        sys.exit(f"quickstart: drawing images requires {' and '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}")
    shapes = os.path.join(os.path.dirname(__file__), "shapes")
    program = os.path.join(sysconfig.get_path("scripts"), "vlmtrain")
    os.execvp("bash", ["bash", os.path.join(shapes, "train_shapes.sh"), program, sys.executable, os.path.join(shapes, "quickstart.yaml"),
                       *sys.argv[1:]])
