"""In the place of `opd.compat.vllm_imports`, with a thread that lives on."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
import opd.compat.vllm_imports  # noqa: E402, F401
