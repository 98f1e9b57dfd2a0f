"""In the place of `opd.compat.vllm_imports`, where vLLM is not installed, or as if it were not."""

import sys

sys.modules["vllm"] = None  # type: ignore[assignment] # whoever imports it is told that it is not there
import opd.compat.vllm_imports  # noqa: E402, F401
