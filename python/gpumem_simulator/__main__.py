from . import _run

_run()
