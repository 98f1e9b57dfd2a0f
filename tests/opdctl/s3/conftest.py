"""The S3 server of the run directory's own tests: versitygw over HTTP, and the proxy before it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SOURCE = Path(__file__).parents[2] / "runs" / "s3" / "conftest.py"
_spec = importlib.util.spec_from_file_location("opdctl_s3_fixtures", _SOURCE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)

s3_server = _module.s3_server
proxy = _module.proxy
s3_environment = _module.s3_environment
s3_url = _module.s3_url
fresh_filesystem = _module.fresh_filesystem
