"""The S3 server of the run directory's own tests, and the proxy before it."""

from tests.runs.s3.conftest import fresh_filesystem, proxy, s3_environment, s3_server, s3_url  # noqa: F401
