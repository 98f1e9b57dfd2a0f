"""`make quickstart`: the bundled experiment through `opd.launch`, watched, measured and drawn."""
