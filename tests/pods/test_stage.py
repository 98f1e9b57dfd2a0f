"""The program that fills a claim: from a real S3 server in tests/runs/s3; here what it refuses and records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opd.pods.stage import RECORD_FILE, main, stage


def test_a_source_that_is_neither_url_nor_hub_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a store URL"):
        stage("/some/path/here", tmp_path)


def test_a_failed_start_takes_the_record_away(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / RECORD_FILE).write_text(json.dumps({"source": "s3://old"}))
    assert main(["not/a/source", "--to", str(tmp_path)]) == 1
    assert not (tmp_path / RECORD_FILE).exists()
    assert "neither a store URL" in capsys.readouterr().err
